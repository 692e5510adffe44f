"""A mesh with something to show, and the comparison of what a page says with what a command prints."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.doubles.admin import timeline
from tests.doubles.eventually import SOON, eventually
from tests.doubles.mesh import MeshProcesses
from tests.doubles.wire_client import WireClient, batch
from tests.mesh.busy import Busy
from tests.mesh.main_path import adam, created, done, saved

_WORDS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d\.\d+)?", "TIME"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b[0-9a-f]{12,}\b", "HEX"),
    (r"127\.0\.0\.1:\d+", "ADDRESS"),
    (r"/[\w./-]+", "DIRECTORY"),
    (r"\d[\d.,]*( (s|ms|min|h|B|KiB|MiB|GiB|TiB)\b|%)?(\+\w+)?", "N"),
)


def shape(text: str) -> list[str]:
    """Lines with ids, times, addresses, places and numbers replaced by their kind, and single blanks."""
    for pattern, word in _WORDS:
        text = re.sub(pattern, word, text)
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@dataclass(slots=True)
class Shown:
    """What the commands of docs/cli.md name in capitals."""

    busy: Busy
    finished: str  # a request that is done
    run: str
    paths: list[str]

    @property
    def replacements(self) -> dict[str, str]:
        addresses = self.busy.mesh.mesh.addresses
        return {
            "FINISHED_REQUEST": self.finished,
            "FAILED_REQUEST": self.busy.failed,
            "RUN_ID": self.run,
            "CHECKPOINT": self.paths[-1],
            "127.0.0.1:7001": addresses.schedulers[0],
            "127.0.0.1:7000": addresses.redis,
            "http://127.0.0.1:8000": addresses.base_url,
        }


@contextmanager
def shown(mesh: MeshProcesses) -> Iterator[Shown]:
    """A run with three checkpoints whose session has ended, and the work of `Busy`."""
    finished, run, paths = asyncio.run(_trained(mesh))
    with Busy.start(mesh) as busy:
        asyncio.run(eventually(lambda: _delivered(mesh, finished, busy.failed), 3 * SOON))
        yield Shown(busy, finished, run, paths)


async def _trained(mesh: MeshProcesses) -> tuple[str, str, list[str]]:
    client = WireClient([mesh.base_url], mesh.api_key)
    session = await client.session()
    model = await created(client, session)
    sent = (await client.post("/forward_backward", batch(model, 1, seed=1))).json()["request_id"]
    await client.future(sent)
    await done(client, "/optim_step", adam(model, 2))
    paths = [await saved(client, model, 3, "step-1"), await saved(client, model, 4, "draft")]
    paths.append(await saved(client, model, 5, "old", "save_weights_for_sampler"))
    await client.post(f"/sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
    await client.close()
    return str(sent), model, paths


async def _delivered(mesh: MeshProcesses, *requests: str) -> bool:
    """Their clients have the results; the mark of it comes a little later."""
    return all(timeline(mesh.scheduler, request)[-1] == "delivered" for request in requests)
