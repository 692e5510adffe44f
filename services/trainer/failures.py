"""How an exception on a rank becomes a failure that all ranks and the scheduler understand."""

from __future__ import annotations

import logging

import msgspec
import torch
from tinkermesh.v1.types_pb2 import FAILURE_CATEGORY_SERVER, FAILURE_CATEGORY_USER, Failure

from services.common.errors import TinkermeshError, Unavailable, UserError

log = logging.getLogger(__name__)


class RanksDiverged(Exception):
    """Some ranks changed their state and others did not, or a peer is gone: only a new life helps."""


# A device that faulted answers everything with the same error until its process ends.
FATAL: tuple[type[BaseException], ...] = (RanksDiverged, torch.AcceleratorError)


class Status(msgspec.Struct, frozen=True):
    """One rank's word in a vote."""

    ok: bool = True
    user: bool = False
    message: str = ""
    transient: bool = False


class AgreedFailure(Exception):
    """The same on every rank. `everywhere`: each of them failed, so none is ahead of the others."""

    def __init__(self, status: Status, *, everywhere: bool) -> None:
        super().__init__(status.message)
        self.status = status
        self.everywhere = everywhere

    def failure(self) -> Failure:
        return to_failure(self.status)


def to_failure(status: Status) -> Failure:
    category = FAILURE_CATEGORY_USER if status.user else FAILURE_CATEGORY_SERVER
    return Failure(category=category, message=status.message, transient=status.transient)


def user_failure(message: str) -> Failure:
    return to_failure(Status(ok=False, user=True, message=message))


def status_of(error: Exception, stage: str) -> Status:
    """Expected errors keep their text; anything else is logged here and loses it."""
    if isinstance(error, TinkermeshError):
        away = isinstance(error, Unavailable)
        return Status(ok=False, user=isinstance(error, UserError), message=error.message, transient=away)
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        log.error("%s: out of memory: %s", stage, error)
        text = f"{stage}: the trainer ran out of memory; send fewer or shorter datums"
        return Status(ok=False, message=text, transient=True)
    log.error("%s failed unexpectedly", stage, exc_info=error)
    return Status(
        ok=False, message=f"{stage}: internal error ({type(error).__name__}); the trainer's log has the cause"
    )
