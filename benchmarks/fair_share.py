"""A tenant that floods a pool, and what the other one gets: its first datum's delay in units, and shares by weight."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import grpc
from tinkermesh.v1 import tenants_pb2 as pb
from tinkermesh.v1.tenants_pb2_grpc import TenantsStub

from benchmarks.client_process import ClientProcess
from benchmarks.figure import Figure
from benchmarks.mesh import DOUBLE, RunningMesh, doubled
from services.local.state import keyring
from tests.doubles.admin import list_pools
from tests.doubles.journal import read

TOKENS, PER_REQUEST = 8, 1_000
UNIT_SECONDS = 0.1  # what the trainer double takes, so that a backlog lasts
WEIGHT = 2.0
SHARED_UNITS = 40


def run(quick: bool) -> list[Figure]:
    datums, repetitions = (10_000, 2) if quick else (100_000, 7)
    with doubled(slots=8) as mesh:
        keys = mesh.keys(2)
        with ClientProcess(mesh.base_url, keys) as client:
            client.do("open", **DOUBLE, models=2, tokens=TOKENS, datums=1)
            alone = [_first_datum(mesh, client) for _ in range(repetitions)]
            mesh.delay_trainer(UNIT_SECONDS)
            client.do("flood", model=0, requests=datums // PER_REQUEST, datums=PER_REQUEST, tokens=TOKENS)
            behind = [_first_datum(mesh, client) for _ in range(repetitions)]
        share = [_share(mesh, keys) for _ in range(1 if quick else 3)]
    both = f"datums in {SHARED_UNITS} units, both flooding"
    note = f"{datums:,} datums of {TOKENS} tokens queued by the other tenant, {UNIT_SECONDS:g} s per unit"
    return [
        Figure("units until a newcomer's first datum is done", [units for units, _ in behind], "units", "<= 2", note),
        Figure("newcomer's first datum behind the flood", [ms for _, ms in behind], "ms", note=note),
        Figure("newcomer's first datum, nobody else", [ms for _, ms in alone], "ms"),
        Figure(f"share at weights {WEIGHT:g} to 1", share, "", ">= 1.9", both),
    ]


def _first_datum(mesh: RunningMesh, client: ClientProcess) -> tuple[float, float]:
    """(units that ended from its POST to its result, milliseconds)."""
    before = _units(mesh)
    (milliseconds,) = client.do("one_batch", model=1)
    return float(_units(mesh) - before), milliseconds


def _units(mesh: RunningMesh) -> int:
    return sum(pool.units_total for pool in list_pools(mesh.mesh.addresses.schedulers[0]))


def _share(mesh: RunningMesh, keys: list[str]) -> float:
    """Datums of the heavier tenant for each of the other's, from models of their own."""
    _weigh(mesh, keys[0])
    mesh.delay_trainer(UNIT_SECONDS)
    with ClientProcess(mesh.base_url, keys) as client:
        client.do("open", **DOUBLE, models=2, tokens=TOKENS, datums=1)
        sent = [client.do("flood", model=n, requests=40, datums=PER_REQUEST, tokens=TOKENS) for n in (0, 1)]
        owner = {request: number for number, requests in enumerate(sent) for request in requests}
        datums = _served(mesh, owner, SHARED_UNITS)
        mesh.delay_trainer(0.0)
        client.do("finish")
    return datums[0] / max(1, datums[1])


def _weigh(mesh: RunningMesh, key: str) -> None:
    tenant = keyring(mesh.settings.key_file, mesh.settings.pepper_file).add(key)  # a known key answers its tenant
    with grpc.insecure_channel(mesh.mesh.addresses.schedulers[0]) as channel:
        TenantsStub(channel).SetTenant(pb.SetTenantRequest(tenant_id=tenant, weight=WEIGHT), timeout=10)


def _served(mesh: RunningMesh, owner: dict[str, int], units: int) -> Counter[int]:
    """Datums by owner in the first `units` passes in which both had work."""
    return _until(lambda: _counted(mesh, owner, units), 120.0)


def _counted(mesh: RunningMesh, owner: dict[str, int], units: int) -> Counter[int] | None:
    passes = [entry for entry in read(mesh.settings.state_dir / "trainer.journal") if entry["kind"] == "pass"]
    mine = [[owner[request] for request, _ in entry["datums"] if request in owner] for entry in passes]
    both = next((n for n, owners in enumerate(mine) if len(set(owners)) == 2), len(mine))
    if len(mine) < both + units:
        return None
    return Counter(number for owners in mine[both : both + units] for number in owners)


def _until(found: Callable[[], Counter[int] | None], seconds: float) -> Counter[int]:
    ends = time.monotonic() + seconds
    while (answer := found()) is None:
        if time.monotonic() > ends:
            raise RuntimeError(f"not enough shared units within {seconds:g} s")
        time.sleep(0.2)
    return answer
