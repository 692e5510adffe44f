"""The processes of one trainer: rank 0 starts the others, unless torchrun started them all."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # missing in its __all__

from services.common.errors import InvalidInput
from services.common.settings import to_environment
from services.trainer.control import Alone, Control, GlooControl
from services.trainer.settings import Settings

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
START_SECONDS = 300.0
EXIT_SECONDS = 20.0


def started_by_torchrun(environ: Mapping[str, str]) -> bool:
    return "RANK" in environ and "WORLD_SIZE" in environ


@dataclass(slots=True)
class Ranks:
    """This rank's way to the others; on rank 0 also the processes it started."""

    control: Control
    children: Sequence[subprocess.Popen[bytes]] = ()

    def watch(self, died: Callable[[str], None]) -> None:
        """Calls `died` once if a started rank ends before rank 0 lets it go."""
        for number, child in enumerate(self.children, start=1):
            threading.Thread(target=_wait_for, args=(number, child, died), name=f"rank-{number}", daemon=True).start()

    def leave(self) -> None:
        """Waits for the ranks rank 0 has told to stop; ends those that do not."""
        for child in self.children:
            try:
                child.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if self.control.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    def kill(self) -> None:
        for child in self.children:
            child.kill()


def join(settings: Settings, environ: Mapping[str, str] = os.environ) -> Ranks:
    """Starts or meets the other ranks. Raises InvalidInput when the sizes do not fit."""
    if started_by_torchrun(environ):
        return _join_torchrun(settings, environ)
    if settings.world == 1:
        return Ranks(Alone())
    if settings.rendezvous:
        _end_with_parent()
        host, port = settings.rendezvous.rsplit(":", 1)
        store = TCPStore(host, int(port), settings.world, is_master=False, timeout=_patience())
        return Ranks(_initialize(settings, store))
    store = TCPStore("127.0.0.1", 0, settings.world, is_master=True, timeout=_patience(), wait_for_workers=False)
    children = [_start(settings, rank, f"127.0.0.1:{store.port}", environ) for rank in range(1, settings.world)]
    try:
        return Ranks(_initialize(settings, store), children)
    except BaseException:
        Ranks(Alone(), children).kill()
        raise


def _join_torchrun(settings: Settings, environ: Mapping[str, str]) -> Ranks:
    if int(environ["WORLD_SIZE"]) != settings.world:
        raise InvalidInput(f"torchrun started {environ['WORLD_SIZE']} ranks, tp * dp is {settings.world}")
    if settings.world == 1:
        return Ranks(Alone())
    dist.init_process_group(_backend(), timeout=_patience())
    return Ranks(GlooControl())


def _initialize(settings: Settings, store: TCPStore) -> Control:
    dist.init_process_group(_backend(), store=store, rank=settings.rank, world_size=settings.world, timeout=_patience())
    return GlooControl()


def _end_with_parent() -> None:
    """Should rank 0 be killed before the ranks have met, nobody else would end this one (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _backend() -> str:
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


def _patience() -> timedelta:
    return timedelta(seconds=START_SECONDS)


def _start(settings: Settings, rank: int, rendezvous: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    own = msgspec.structs.replace(settings, rank=rank, rendezvous=rendezvous, port_file="")
    variables = {**environ, **to_environment(own, "trainer"), "LOCAL_RANK": str(rank)}
    return subprocess.Popen([sys.executable, "-m", "services.trainer"], env=variables)


def _wait_for(number: int, child: subprocess.Popen[bytes], died: Callable[[str], None]) -> None:
    code = child.wait()
    if code != 0:
        died(f"rank {number} ended with exit code {code}")
