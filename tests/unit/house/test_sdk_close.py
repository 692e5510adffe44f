"""A session's end is waited for, the SDK's own telemetry is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from tests.doubles.sdk_close import close


@pytest.fixture
def task() -> Iterator[asyncio.Task[None]]:
    loop = asyncio.new_event_loop()
    made = loop.create_task(asyncio.sleep(3600))
    yield made
    made.cancel()
    loop.run_until_complete(asyncio.gather(made, return_exceptions=True))
    loop.close()


def service(ended: bool, task: asyncio.Task[None] | None) -> SimpleNamespace:
    future: Future[None] = Future()
    if ended:
        future.set_result(None)
    return SimpleNamespace(
        close=lambda status: SimpleNamespace(result=future.result), get_telemetry=lambda: SimpleNamespace(_task=task)
    )


def test_an_end_that_the_mesh_told_needs_no_telemetry() -> None:
    close(service(True, None), 0.01)


def test_telemetry_whose_cancellation_was_lost_is_passed_over(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.warns(UserWarning, match="lost the cancellation"):
        close(service(False, task), 0.01)


@pytest.mark.parametrize("started", [False, True])
def test_a_mesh_that_does_not_answer_is_told(task: asyncio.Task[None], started: bool) -> None:
    """The telemetry goes on, or never began: the SDK still waits for the mesh."""
    with pytest.raises(TimeoutError):
        close(service(False, task if started else None), 0.01)
