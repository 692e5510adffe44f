"""What a sequence has generated since its last event, in no particular route's form; and all of it together."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from tinkermesh.v1 import completions_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.gateway.wire.render_sample import MASK_LOGPROB


class Piece(NamedTuple):
    """A token's bytes and its logprob."""

    data: bytes
    logprob: float

    @property
    def text(self) -> str:
        """As OpenAI writes a token that is no whole text: ``bytes:\\xe2\\x82``."""
        try:
            return self.data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in self.data)


@dataclass(slots=True)
class Token:
    """`offset`: where it begins in the text of its sequence, in characters."""

    piece: Piece
    offset: int
    top: list[Piece]


@dataclass(slots=True)
class Delta:
    text: str = ""
    finish: str = ""
    token_ids: list[int] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)  # only where logprobs were asked for

    def add(self, other: Delta) -> None:
        self.text += other.text
        self.finish = other.finish or self.finish
        self.token_ids += other.token_ids
        self.tokens += other.tokens


class Reader:
    """Reads one sequence's chunks."""

    def __init__(self) -> None:
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def delta(self, chunk: pb.GeneratedChunk) -> Delta:
        ids: list[int] = np.frombuffer(chunk.tokens, "<i4").tolist()
        return Delta(chunk.text, chunk.finish, ids, list(self._tokens(chunk)) if chunk.pieces else [])

    def _tokens(self, chunk: pb.GeneratedChunk) -> Iterator[Token]:
        scores = np.frombuffer(chunk.logprobs, "<f4").tolist()
        for index, (data, score) in enumerate(zip(chunk.pieces, scores, strict=True)):
            yield Token(Piece(data, score), self._offset, _row(chunk.topk, chunk.topk_pieces, index))
            self._offset += len(self._decoder.decode(data))


def _row(table: types.TopkTable, pieces: Sequence[bytes], index: int) -> list[Piece]:
    """The best alternatives of one token, what was masked left out."""
    if not table.k:
        return []
    start, end = index * table.k, (index + 1) * table.k
    scores = np.frombuffer(table.logprobs, "<f4")[start:end].tolist()
    return [Piece(one, score) for one, score in zip(pieces[start:end], scores, strict=True) if score != MASK_LOGPROB]
