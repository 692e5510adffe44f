"""Where the points of each service are. Names: ``<what>:<which>:<when>``.

redis:<function>:before|after        scheduler, around each call of a Redis function
send|reply:<rpc>                     caller: before the call leaves, after its answer came
serve|answer:<rpc>                   callee: the call arrived, its answer is about to leave
fsync|rename|replace|symlink:before|after    where a trainer or sampler touches the store
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from tests.chaos.points import Points, around_call, around_coroutine, around_stream

FILE_CALLS = ("fsync", "rename", "replace", "symlink")
TRAINER_RPCS = ("Describe", "Takeover", "Execute", "Attach", "Acknowledge", "AwaitArtifact")
SAMPLER_RPCS = ("Describe", "LoadAdapter", "UnloadAdapter", "ListAdapters", "Sample", "Abort")
SCHEDULER_RPCS = (
    "CreateSession",
    "Heartbeat",
    "FinishSession",
    "Submit",
    "SubmitStream",
    "CreateSamplingSession",
    "GetModel",
    "GetResult",
    "Watch",
)
TRAINER_CLIENT = ("describe", "takeover", "execute", "attach", "acknowledge", "artifact")
SAMPLER_LINK = ("load", "sample")
GATEWAY_CLIENT = ("submit", "create_session", "finish_session", "create_sampling_session", "get_result")


def install(module: str, points: Points) -> None:
    """Wraps the seams of the service that `module` runs; unknown ones have none."""
    wrap = _BY_MODULE.get(module)
    if wrap is not None:
        wrap(points)


def _scheduler(points: Points) -> None:
    from services.scheduler.dispatch.client import TrainerClient
    from services.scheduler.sampling.link import SamplerLink
    from services.scheduler.server import Scheduler
    from services.scheduler.store.functions import Functions

    names = "redis:{}:before", "redis:{}:after"
    around_coroutine(Functions, "call_storing", *names, points, lambda _self, _values, _ttl, name, *_: name)
    _callers(TrainerClient, TRAINER_CLIENT, points)
    _callers(SamplerLink, SAMPLER_LINK, points)
    _callees(Scheduler, SCHEDULER_RPCS, points)


def _gateway(points: Points) -> None:
    from services.gateway.upstream.scheduler import SchedulerClient

    _callers(SchedulerClient, GATEWAY_CLIENT, points)


def _trainer_double(points: Points) -> None:
    from tests.doubles.fake_trainer import FakeTrainer

    _callees(FakeTrainer, TRAINER_RPCS, points)
    _files(points)


def _trainer(points: Points) -> None:
    from services.trainer.server import TrainerService

    _callees(TrainerService, TRAINER_RPCS, points)
    _files(points)


def _sampler_double(points: Points) -> None:
    from tests.doubles.fake_sampler import FakeSampler

    _callees(FakeSampler, SAMPLER_RPCS, points)


_BY_MODULE: dict[str, Callable[[Points], None]] = {
    "services.scheduler": _scheduler,
    "services.gateway": _gateway,
    "services.trainer": _trainer,
    "tests.doubles.fake_trainer": _trainer_double,
    "tests.doubles.fake_sampler": _sampler_double,
}


def _callers(owner: Any, names: Iterable[str], points: Points) -> None:
    for name in names:
        around_coroutine(owner, name, f"send:{name}", f"reply:{name}", points)


def _callees(owner: Any, names: Iterable[str], points: Points) -> None:
    for name in names:
        wrap = around_stream if inspect.isasyncgenfunction(getattr(owner, name)) else around_coroutine
        wrap(owner, name, f"serve:{name}", f"answer:{name}", points)


def _files(points: Points) -> None:
    for name in FILE_CALLS:
        around_call(os, name, f"{name}:before", f"{name}:after", points)


# ---- what there is to arm ---------------------------------------------------------------------


def redis_functions() -> list[str]:
    """Names of all functions of the library."""
    from services.scheduler.store.functions import library

    return re.findall(r"register\('(\w+)'", library().source)


def catalog() -> dict[str, list[str]]:
    """Every point by the kind of process that has it."""
    files = [f"{name}:{when}" for name in FILE_CALLS for when in ("before", "after")]
    return {
        "scheduler": [
            *(f"redis:{name}:{when}" for name in redis_functions() for when in ("before", "after")),
            *_pairs(("send", "reply"), (*TRAINER_CLIENT, *SAMPLER_LINK)),
            *_pairs(("serve", "answer"), SCHEDULER_RPCS),
        ],
        "gateway": _pairs(("send", "reply"), GATEWAY_CLIENT),
        "trainer": [*_pairs(("serve", "answer"), TRAINER_RPCS), *files],
        "sampler": _pairs(("serve", "answer"), SAMPLER_RPCS),
    }


def _pairs(when: Iterable[str], names: Iterable[str]) -> list[str]:
    return [f"{one}:{name}" for name in names for one in when]
