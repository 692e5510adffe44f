"""The two routes' forms of one delta: as part of a stream's event, and as a choice of a whole answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from services.gateway.openai.deltas import Delta, Piece, Token


class Form(Protocol):
    prefix: str
    whole: str  # `object` of a whole answer
    part: str  # `object` of a stream's event

    def choice(self, index: int, delta: Delta) -> dict[str, Any]:
        """A whole answer's; without logprobs and token ids."""
        ...

    def event(self, index: int, delta: Delta, *, first: bool) -> dict[str, Any]:
        """A stream's, likewise. `first`: of its sequence."""
        ...

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]: ...


class CompletionForm:
    prefix, whole, part = "cmpl", "text_completion", "text_completion"

    def choice(self, index: int, delta: Delta) -> dict[str, Any]:
        return {"index": index, "text": delta.text, "logprobs": None, "finish_reason": delta.finish or None}

    def event(self, index: int, delta: Delta, *, first: bool) -> dict[str, Any]:
        return self.choice(index, delta)

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        return {
            "tokens": [token.piece.text for token in tokens],
            "token_logprobs": [token.piece.logprob for token in tokens],
            "top_logprobs": [{one.text: one.logprob for one in (*token.top, token.piece)} for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }


class ChatForm:
    prefix, whole, part = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def choice(self, index: int, delta: Delta) -> dict[str, Any]:
        message = {"role": "assistant", "content": delta.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": None, "finish_reason": delta.finish or None}

    def event(self, index: int, delta: Delta, *, first: bool) -> dict[str, Any]:
        told: dict[str, Any] = {"role": "assistant"} if first else {}
        if delta.text or first:
            told["content"] = delta.text
        return {"index": index, "delta": told, "logprobs": None, "finish_reason": delta.finish or None}

    def logprobs(self, tokens: Sequence[Token]) -> dict[str, Any]:
        content = [{**_entry(token.piece), "top_logprobs": [_entry(one) for one in token.top]} for token in tokens]
        return {"content": content, "refusal": None}


def _entry(piece: Piece) -> dict[str, Any]:
    return {"token": piece.text, "logprob": piece.logprob, "bytes": list(piece.data)}
