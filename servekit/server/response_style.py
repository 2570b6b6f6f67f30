"""A generation in the words of /v1/responses: typed events with a number each, or one response."""

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from servekit.errors import ServekitError
from servekit.server.running import Taken
from servekit.server.stream import Chunk, Framing, encode
from servekit.server.text import Piece
from servekit.server.wire import Usage


def typed_event(chunk: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (chunk["type"].encode(), encode(chunk))


EVENTS = Framing(typed_event, b"")
"""The last event says that it is the last: completed, incomplete or failed."""


TOO_SHORT = {"reason": "max_output_tokens"}


@dataclass(slots=True)
class ResponseStyle:
    """`asked` is what a response repeats of its request; the text is kept for the last events."""

    id: str
    asked: dict[str, Any]
    timings: bool
    created: int = field(default_factory=lambda: int(time.time()))
    item_id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    usage_so_far: bool = False
    said: list[str] = field(default_factory=list)
    finish: str | None = None
    events: int = 0
    framing: ClassVar[Framing] = EVENTS

    def opening(self) -> list[Chunk]:
        response = self.response("in_progress")
        item = self._item("in_progress", [])
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
            self._event("response.output_item.added", output_index=0, item=item),
            self._in_part("response.content_part.added", part=_part("")),
        ]

    def chunks(self, index: int, piece: Piece, usage: Usage | None) -> Iterable[Chunk]:
        if piece.finish is not None:
            self.finish = piece.finish
        if piece.text:
            self.said.append(piece.text)
            yield self._in_part("response.output_text.delta", delta=piece.text, logprobs=[])

    def closing(self, taken: Taken) -> list[Chunk]:
        text, status = "".join(self.said), self.status
        return [
            self._in_part("response.output_text.done", text=text, logprobs=[]),
            self._in_part("response.content_part.done", part=_part(text)),
            self._event(
                "response.output_item.done", output_index=0, item=self._item(status, [_part(text)])
            ),
            self._event(f"response.{status}", response=self.response(status, text, taken)),
        ]

    def failed(self, error: ServekitError) -> list[Chunk]:
        response = self.response("failed", "".join(self.said))
        response["error"] = {"code": error.code, "message": error.message}
        return [self._event("response.failed", response=response)]

    def answer(self, answers: list[list[Piece]], taken: Taken) -> dict[str, Any]:
        (pieces,) = answers
        self.finish = pieces[-1].finish
        return self.response(self.status, "".join(piece.text for piece in pieces), taken)

    @property
    def status(self) -> str:
        return "incomplete" if self.finish == "length" else "completed"

    def response(
        self, status: str, text: str | None = None, taken: Taken | None = None
    ) -> dict[str, Any]:
        """As it is now; `taken` once it has ended."""
        ended = status if status != "failed" else "incomplete"
        made: dict[str, Any] = {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": TOO_SHORT if status == "incomplete" else None,
            "output": [] if text is None else [self._item(ended, [_part(text)])],
            "usage": None if taken is None else _usage(taken.usage),
            **self.asked,
        }
        if taken is not None and self.timings:
            made["timings"] = taken.timings
        return made

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.item_id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _in_part(self, kind: str, **fields: Any) -> dict[str, Any]:
        place = {"item_id": self.item_id, "output_index": 0, "content_index": 0}
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        number, self.events = self.events, self.events + 1
        return {"type": kind, "sequence_number": number, **fields}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }
