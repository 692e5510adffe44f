"""Captured images on their way into the store: one background thread writes and publishes them."""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tinkermesh.v1 import trainer_pb2 as pb

from services.common import logs
from services.common.artifact_meta import is_of_save
from services.common.errors import StaleFence, TinkermeshError, Unavailable, UserError
from services.common.publication_fence import PublicationFence
from services.common.publish import Claim, Reached, check_free, collect_garbage, public_path, publish
from services.common.store import relative
from services.common.telemetry import span
from services.trainer import checkpoint, metrics
from services.trainer.engine import SlotImage
from services.trainer.failures import Status, to_failure
from services.trainer.fence import refused

log = logging.getLogger(__name__)

ROOM_SECONDS = 60.0
Published = Callable[[str, pb.ArtifactOutcome], None]


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an image goes and under whose name."""

    meta: pb.ArtifactMeta
    directory: str
    overwrite: bool
    term: int

    def claim(self) -> Claim:
        """A save re-run after a crash finds its own publication."""
        return Claim(self.overwrite, self.term, lambda stored: is_of_save(stored, self.meta))


@dataclass(frozen=True, slots=True)
class Artifact:
    unit_id: str
    image: SlotImage
    destination: Destination
    traceparent: str = ""


class ArtifactWriter:
    def __init__(
        self,
        root: Path,
        origin: checkpoint.Origin,
        published: Published,
        failed: Callable[[BaseException], None],
        *,
        pending: int,
        grace_seconds: float,
        fence: PublicationFence,
        reached: Reached | None = None,
    ) -> None:
        self._root = root
        self._origin = origin
        self._published = published
        self._failed = failed
        self._grace = grace_seconds
        self._fence = fence
        self._reached = reached or (lambda step: None)
        self._queue: queue.Queue[Artifact | None] = queue.Queue(maxsize=pending)
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._run, name="artifacts", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def admit(self, destination: Destination) -> None:
        """A look before the capture. Raises InvalidInput, StaleFence, Unavailable when too many wait."""
        self._fence.stage()
        if self._queue.full():
            raise Unavailable("too many saves wait to be written; the store is slow, try again later")
        check_free(public_path(self._root, destination.directory), destination.claim())

    @property
    def waiting(self) -> int:
        """Captured and not taken up yet."""
        return self._queue.qsize()

    def submit(self, artifact: Artifact) -> None:
        self._queue.put(artifact, timeout=ROOM_SECONDS)

    def stop(self, timeout_seconds: float) -> bool:
        """Writes what was captured; False when it did not get done in time."""
        ends = time.monotonic() + timeout_seconds
        try:
            self._queue.put(None, timeout=timeout_seconds)
        except queue.Full:
            return False
        return self._drained.wait(max(0.0, ends - time.monotonic()))

    def _run(self) -> None:
        try:
            while (artifact := self._queue.get()) is not None:
                with logs.bind(unit_id=artifact.unit_id, model_id=artifact.destination.meta.model_id):
                    self._published(artifact.unit_id, self._settle(artifact))
            self._drained.set()
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: without it saves would wait for ever
            self._failed(error)

    def _settle(self, artifact: Artifact) -> pb.ArtifactOutcome:
        try:
            publishing = span("trainer.publish", {"unit_id": artifact.unit_id}, parent=artifact.traceparent)
            with metrics.publication(artifact.destination.meta.kind), publishing:
                return self._publish(artifact)
        except StaleFence as error:
            status = self._refused(artifact, error)
        except TinkermeshError as error:
            status = Status(ok=False, user=isinstance(error, UserError), message=error.message)
        except OSError as error:
            log.error("publishing %s failed: %s", artifact.destination.directory, error)
            status = Status(ok=False, message=_store_trouble(error))
        except Exception as error:  # noqa: BLE001 - the thread must live on, the waiter must hear
            log.exception("publishing %s failed unexpectedly", artifact.destination.directory)
            status = Status(
                ok=False, message=f"save: internal error ({type(error).__name__}); the trainer's log has the cause"
            )
        return pb.ArtifactOutcome(unit_id=artifact.unit_id, failure=to_failure(status))

    def _refused(self, artifact: Artifact, error: StaleFence) -> Status:
        """Too late, and so is this whole process when it is another incarnation that has taken over."""
        destination = artifact.destination
        refused(
            f"publication of {destination.directory}",
            error.message,
            term=destination.term,
            incarnation=self._fence.incarnation,
            unit_id=artifact.unit_id,
        )
        if superseded := self._fence.superseded:
            self._failed(StaleFence(superseded))
        return Status(ok=False, message=error.message)

    def _publish(self, artifact: Artifact) -> pb.ArtifactOutcome:
        destination = artifact.destination
        public, started = public_path(self._root, destination.directory), time.perf_counter()

        def fill(directory: Path) -> None:
            checkpoint.write(directory, artifact.image, destination.meta, destination.term, self._origin)

        version = publish(public, fill, destination.claim(), reached=self._reached, stage=self._fence.stage)
        size = sum(file.stat().st_size for file in version.iterdir())
        metrics.published_bytes(destination.meta.kind, size)
        self._collect(public.parent)
        _log_publication(destination, size, time.perf_counter() - started)
        return pb.ArtifactOutcome(
            unit_id=artifact.unit_id, version_directory=relative(self._root, version), size_bytes=size
        )

    def _collect(self, parent: Path) -> None:
        try:
            removed = collect_garbage(parent, self._grace)
        except OSError as error:
            log.warning("old versions in %s stay for now: %s", parent.name, error)
            return
        if removed:
            log.info("removed %d superseded versions of %s", len(removed), parent)


def _log_publication(destination: Destination, size: int, seconds: float) -> None:
    fields = {"published": destination.directory, "bytes": size, "seconds": round(seconds, 4)}
    log.info("published %s: %d bytes in %.3f s", destination.directory, size, seconds, extra={"fields": fields})


def _store_trouble(error: OSError) -> str:
    text = os.strerror(error.errno) if error.errno else type(error).__name__
    remedy = (
        "free space in the store"
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else "check the store's permissions and mount"
    )
    return (
        f"save: the store did not take it ({text}); nothing was published, the model is as it was; {remedy}, save again"
    )
