"""A server that refuses everything and does nothing else: what refusals cost at the very least.

It prints its port, and ends when its input does.
"""

import asyncio
import sys

BODY = b'{"error": {"message": "full", "type": "rate_limit_error", "param": null, "code": "full"}}'
HEAD = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n"
ANSWER = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY


async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.readuntil(b"\r\n\r\n"):
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length:")
        )
        await reader.readexactly(length)
        writer.write(ANSWER)


async def main() -> None:
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
