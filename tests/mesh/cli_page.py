"""A mesh with something to show, and the comparison of what a page says with what a command prints."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.doubles.admin import samplers, timeline, trainers
from tests.doubles.eventually import SOON, eventually
from tests.doubles.job_client import JobClient
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.busy import submitted
from tests.mesh.main_path import adam, base_sampler, created, done, sample, saved

_WORDS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d\.\d+)?", "TIME"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"(?<![0-9a-f])[0-9a-f]{12,}(?![0-9a-f])", "HEX"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"/[\w./-]+", "DIRECTORY"),
    (r"\d[\d.,]*( (s|ms|min|h|B|KiB|MiB|GiB|TiB)\b|%)?(\+\w+)?", "N"),
)


def shape(text: str) -> list[str]:
    """Lines with ids, times, addresses, places and numbers replaced by their kind, and single blanks.

    Lines that are then alike count once: how many models or runs there are is not what a page promises.
    """
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    return list(dict.fromkeys(" ".join(line.split()) for line in text.splitlines() if line.strip()))


@dataclass(slots=True)
class Shown:
    """What the commands of docs/cli.md name in capitals."""

    mesh: MeshProcesses
    finished: str = ""  # a request that is done
    failed: str = ""
    running: str = ""
    run: str = ""
    models: list[str] = field(default_factory=list)  # busy, behind a gap, idle, spare
    paths: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)  # that have ended
    tasks: str = ""  # a file

    @property
    def replacements(self) -> dict[str, str]:
        addresses = self.mesh.mesh.addresses
        return {
            "FINISHED_REQUEST": self.finished,
            "FAILED_REQUEST": self.failed,
            "RUNNING_REQUEST": self.running,
            "BUSY_MODEL": self.models[0],
            "IDLE_MODEL": self.models[2],
            "SPARE_MODEL": self.models[3],
            "TRAINER_ID": "trainer-double",
            "RUN_ID": self.run,
            "CHECKPOINT": self.paths[-1],
            "JOB_ID": self.jobs[0],
            "OTHER_JOB": self.jobs[1],
            "TASKS.jsonl": self.tasks,
            "127.0.0.1:7001": addresses.schedulers[0],
            "127.0.0.1:7000": addresses.redis,
            "http://127.0.0.1:8000": addresses.base_url,
        }


@contextmanager
def shown(mesh: MeshProcesses) -> Iterator[Shown]:
    """A run with three checkpoints whose session has ended; models that run, miss a command and have failed."""
    made = Shown(mesh)
    asyncio.run(_trained(made))
    asyncio.run(_sampled(made))
    for engine, kind in (("trainer", "pass"), ("sampler", "sample")):
        mesh.inject(engine, [{"kind": kind, "action": "hold_before", "times": 0}])
    try:
        asyncio.run(_working(made))
        yield made
    finally:
        for engine in ("trainer", "sampler"):
            mesh.inject(engine, [])


async def _trained(made: Shown) -> None:
    client = WireClient([made.mesh.base_url], made.mesh.api_key)
    session = await client.session()
    made.run = model = await created(client, session)
    made.finished = await submitted(client, "/forward_backward", batch(model, 1, seed=1))
    await client.future(made.finished)
    await done(client, "/optim_step", adam(model, 2))
    made.paths = [await saved(client, model, 3, "step-1"), await saved(client, model, 4, "draft")]
    made.paths.append(await saved(client, model, 5, "old", "save_weights_for_sampler"))
    await client.post(f"/sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
    await client.close()


async def _sampled(made: Shown) -> None:
    """Two jobs that are done, and a file to make another of."""
    tasks = [{"prompt": "The harbour", "max_tokens": 5, "stop": []}, {"input": [11, 12], "max_tokens": 4, "stop": []}]
    file = made.mesh.settings.state_dir / "tasks.jsonl"
    file.write_text("".join(f"{json.dumps(task)}\n" for task in tasks))
    made.tasks = str(file)
    client = JobClient(made.mesh.base_url, made.mesh.api_key)
    for name in ("demo", "other"):
        made.jobs.append(await client.create({"name": name, "tasks": tasks}))
        await client.ended(made.jobs[-1])
    await client.close()


async def _working(made: Shown) -> None:
    client = WireClient([made.mesh.base_url], made.mesh.api_key)
    session = await client.session()
    made.models = [await created(client, session, number) for number in range(4)]
    running, gap, bad, _ = made.models
    made.failed = await submitted(client, "/optim_step", adam(bad, 1, learning_rate="high"))
    await client.future(made.failed)
    made.running = await submitted(client, "/forward_backward", batch(running, 1, seed=1))
    await submitted(client, "/optim_step", adam(running, 2))
    await submitted(client, "/optim_step", adam(gap, 2))
    await submitted(client, "/asample", sample(await base_sampler(client, session), 1, tokens=2))
    await client.close()
    scheduler = made.mesh.scheduler
    await eventually(lambda: any(one.running_unit for one in trainers(scheduler)), 3 * SOON)
    await eventually(lambda: any(one.in_flight for one in samplers(scheduler)), 3 * SOON)
    await eventually(
        lambda: all(timeline(scheduler, r)[-1] == "delivered" for r in (made.finished, made.failed)), 3 * SOON
    )
