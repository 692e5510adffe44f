"""What the ranks of one trainer say to each other outside the engine: commands and votes."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, TypeVar

import msgspec
import torch
import torch.distributed as dist

from services.trainer.failures import FATAL, AgreedFailure, RanksDiverged, Status, status_of

log = logging.getLogger(__name__)
T = TypeVar("T")

VOTE_BYTES = 2048
MESSAGE_BYTES = 1920  # the rest is for its frame
_VOTE_SIZE = struct.Struct("<H")
SILENCE_SECONDS = 120.0
"""A peer silent for longer is gone; idle leaders speak every 30 s."""


class Control(Protocol):
    rank: int
    world: int

    def announce(self, message: bytes) -> None:
        """Rank 0 tells all ranks what comes next. Raises RanksDiverged when a peer is gone."""
        ...

    def listen(self) -> bytes:
        """Ranks above 0 wait for the next announcement. Raises RanksDiverged."""
        ...

    def vote(self, status: Status) -> list[Status]:
        """Every rank's status, by rank; the same list everywhere. Raises RanksDiverged."""
        ...


class Alone:
    """A world of one."""

    rank = 0
    world = 1

    def announce(self, message: bytes) -> None:
        pass

    def listen(self) -> bytes:
        raise RanksDiverged("a world of one has nobody to listen to")

    def vote(self, status: Status) -> list[Status]:
        return [status]


class GlooControl:
    """A group of its own on the CPU, so a vote never meets the engine's collectives."""

    def __init__(self, silence_seconds: float = SILENCE_SECONDS) -> None:
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=silence_seconds))

    def announce(self, message: bytes) -> None:
        self._collective(lambda: self._send(message))

    def listen(self) -> bytes:
        return self._collective(self._receive)

    def vote(self, status: Status) -> list[Status]:
        return self._collective(lambda: self._exchange(status))

    def _send(self, message: bytes) -> None:
        dist.broadcast(torch.tensor([len(message)], dtype=torch.int64), src=0, group=self._group)
        if message:
            dist.broadcast(torch.frombuffer(bytearray(message), dtype=torch.uint8), src=0, group=self._group)

    def _receive(self) -> bytes:
        size = torch.zeros(1, dtype=torch.int64)
        dist.broadcast(size, src=0, group=self._group)
        message = torch.empty(int(size.item()), dtype=torch.uint8)
        if message.numel():
            dist.broadcast(message, src=0, group=self._group)
        return message.numpy().tobytes()

    def _exchange(self, status: Status) -> list[Status]:
        mine = torch.frombuffer(bytearray(encode_vote(status)), dtype=torch.uint8)
        everyone = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(everyone, mine, group=self._group)
        return [decode_vote(tensor.numpy().tobytes()) for tensor in everyone]

    def _collective(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except RuntimeError as error:  # gloo has no narrower type
            raise RanksDiverged(f"rank {self.rank} lost its peers: {error}") from error


def encode_vote(status: Status) -> bytes:
    """VOTE_BYTES, whatever the status says: its message is cut where it must be."""
    message = status.message.encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore")
    word = msgspec.msgpack.encode(msgspec.structs.replace(status, message=message))
    return _VOTE_SIZE.pack(len(word)) + word.ljust(VOTE_BYTES - _VOTE_SIZE.size, b"\0")


def decode_vote(vote: bytes) -> Status:
    (size,) = _VOTE_SIZE.unpack_from(vote)
    return msgspec.msgpack.decode(vote[_VOTE_SIZE.size : _VOTE_SIZE.size + size], type=Status)


def unanimous(control: Control, stage: str, work: Callable[[], T]) -> T:
    """Runs `work` on this rank; if it failed on any, all ranks raise the same AgreedFailure.

    `work` may enter collectives only together with all ranks.
    """
    done: list[T] = []
    try:
        done.append(work())
        status = Status()
    except FATAL:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for our vote
        status = status_of(error, stage)
    votes = control.vote(status)
    failed = [vote for vote in votes if not vote.ok]
    if failed:
        raise AgreedFailure(failed[0], everywhere=len(failed) == len(votes))
    return done[0]
