"""Scrapes of a mesh of real processes: what they count, and what they never say."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest

from tests.doubles.eventually import until
from tests.doubles.fake_trainer import POOL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.scrape import Scrape, Series, scrape, scrape_address
from tests.mesh.scraped_job import Job
from tools.metrics_doc import SECTIONS

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(120)]

LOOKED_SECONDS = 60.0
DECLARED = {one.name: one for section in SECTIONS.values() for one in section}


@pytest.fixture(scope="module")
def job(plain_mesh: MeshProcesses) -> Job:
    made = Job(plain_mesh)
    asyncio.run(made.run())
    until(lambda: pool_told(scrape(plain_mesh, "scheduler-0")), LOOKED_SECONDS)
    return made


def pool_told(found: Scrape) -> bool:
    """The leader's look came after the job."""
    return found.total("tinkermesh_pool_passes_total") >= 1 and found.total("tinkermesh_pool_slots", state="held") >= 1


def all_scrapes(mesh: MeshProcesses) -> dict[str, Scrape]:
    return {process: scrape(mesh, process) for process in mesh.mesh.addresses.metrics}


def test_each_service_counts_its_part_of_a_job(job: Job) -> None:
    found = all_scrapes(job.mesh)
    gateway, scheduler = found["gateway-0"], found["scheduler-0"]
    route = "/api/v1/forward_backward"
    assert gateway.total("tinkermesh_gateway_http_requests_total", route=route, code="200") >= 1
    assert gateway.total("tinkermesh_gateway_http_seconds_count", route=route) >= 1
    assert gateway.total("tinkermesh_gateway_http_requests_total", route="other", code="404") >= 1
    assert scheduler.total("tinkermesh_scheduler_units_total", pool=POOL, kind="pass", outcome="ok") >= 1
    for op in ("create", "optim_step", "save_weights", "save_for_sampler", "sample"):
        assert scheduler.total("tinkermesh_scheduler_requests_settled_total", op=op, outcome="done") >= 1, op
    for path in ("train", "sample"):
        assert scheduler.total("tinkermesh_scheduler_queue_wait_seconds_count", path=path, tenant_class="normal") >= 1
    assert scheduler.total("tinkermesh_scheduler_wakeup_seconds_count", pool=POOL) >= 1
    assert scheduler.total("tinkermesh_grpc_requests_total", method="Scheduler/Submit", code="ok") >= 1
    assert found["trainer"].total("tinkermesh_trainer_units_total", kind="pass", outcome="ok") >= 1
    assert found["sampler"].total("tinkermesh_sampler_samples_total", outcome="ok") >= 1
    assert found["sampler"].total("tinkermesh_sampler_adapter_loads_total", outcome="ok") >= 1


def _live(job: Job) -> tuple[list[float], list[float]]:
    """Trainers and samplers."""
    found = scrape(job.mesh, "scheduler-0")
    kinds = ("tinkermesh_pool_trainers", "tinkermesh_pool_samplers")
    trainers, samplers = (found.values(kind, pool=POOL, state="live") for kind in kinds)
    return trainers, samplers


def test_the_leader_tells_the_state_of_its_pool(job: Job) -> None:
    until(lambda: _live(job) == ([1.0], [1.0]))  # on a busy machine a registration may be renewed late
    found = scrape(job.mesh, "scheduler-0")
    assert found.values("tinkermesh_scheduler_leading", pool=POOL) == [1.0]
    assert found.total("tinkermesh_pool_slots", pool=POOL) == 32.0
    assert found.values("tinkermesh_pool_breaker_open", pool=POOL) == [0.0]
    assert found.values("tinkermesh_scheduler_redis_up") == [1.0]
    assert found.values("tinkermesh_scheduler_store_size_bytes")[0] > 0


def test_every_metric_shown_is_declared_with_its_labels(job: Job) -> None:
    for process, found in all_scrapes(job.mesh).items():
        for series in found.all:
            declared = DECLARED.get(series.family)
            assert declared is not None, f"{process}: {series.family} is not in docs/metrics.md"
            assert set(series.labels) - {"le"} == set(declared.labels), (process, series)


def test_no_id_no_key_and_no_path_is_shown_SEC_02(job: Job) -> None:
    for process, found in all_scrapes(job.mesh).items():
        for word in job.ids:
            assert word not in found.text, f"{process} shows {word}"


def labels_of(found: Scrape) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {(s.name, frozenset(s.labels.items())) for s in found.all}


def test_another_client_with_all_that_is_new_about_it_adds_no_series(job: Job) -> None:
    """Bounded labels: the same work of another tenant, session, model and sampler leads to the same series."""
    before = {name: labels_of(found) for name, found in all_scrapes(job.mesh).items()}
    asyncio.run(Job(job.mesh).run())
    for name, found in all_scrapes(job.mesh).items():
        new = {(s, tuple(sorted(labels))) for s, labels in labels_of(found) - before[name]}
        assert not {one for one in new if not timing(one)}, name


def timing(series: tuple[str, object]) -> bool:
    """What depends on how long something took, such as an outcome that another run did not meet."""
    return "code" in str(series[1]) or "wakeup" in series[0]


def test_targets_are_listed_as_prometheus_reads_them(job: Job) -> None:
    groups = json.loads(job.mesh.settings.metrics_targets.read_text())
    assert {group["labels"]["process"] for group in groups} == {"gateway-0", "scheduler-0", "trainer", "sampler"}
    for group in groups:
        (address,) = group["targets"]
        info: list[Series] = [s for s in scrape_address(address).all if s.name == "tinkermesh_build_info"]
        assert [one.labels["service"] for one in info] == [group["labels"]["service"]]


def test_state_of_a_pool_is_told_by_one_replica_alone(fresh_mesh: MeshProcesses) -> None:
    """And by one alone after its leader was killed, whoever leads then: nothing is counted twice."""

    def told() -> dict[str, float]:
        found = {}
        for name in ("scheduler-0", "scheduler-1"):
            with contextlib.suppress(OSError):  # it is down
                slots = scrape(fresh_mesh, name).values("tinkermesh_pool_slots", pool=POOL)
                found |= {name: sum(slots)} if slots else {}
        return found

    (leader,) = until(told, LOOKED_SECONDS)
    fresh_mesh.kill(leader)
    fresh_mesh.wait_restarted(leader, 1)
    assert list(until(told, LOOKED_SECONDS).values()) == [8.0]
