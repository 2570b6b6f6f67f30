"""WebSocket connections, where uvicorn lets a client fill the memory or the log."""

from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

NOT_UTF8 = 1007
NOT_TAKEN = 1008
MOST_FRAMES = 4096
"""Of one message; the library bounds its bytes, and a frame may have none."""


class BoundedFrames(WebSocketsSansIOProtocol):
    """Reads no more from a client that does not read what answers its pings, and closes the
    connection of one that sends what is no text without a stack trace for each, or a message in
    frames without end."""

    def handle_ping(self) -> None:
        super().handle_ping()
        if not self.writable.is_set():
            self.transport.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_cont(self, event: Any) -> None:
        if self.close_sent:
            return
        if len(self.frames) >= MOST_FRAMES:
            self.frames = []
            self.conn.send_close(NOT_TAKEN, f"a message has at most {MOST_FRAMES} frames")
            self.handle_parser_exception()
            return
        super().handle_cont(event)

    def send_receive_event_to_app(self) -> None:
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(NOT_UTF8)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()
