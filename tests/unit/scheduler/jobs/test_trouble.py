"""When a task is tried again, and when it is given up."""

from __future__ import annotations

import pytest

from services.common.errors import Busy, InvalidInput, MissingResource, ServerError, StaleFence, Unavailable
from services.scheduler.jobs.limits import JobLimits
from services.scheduler.jobs.trouble import LONGEST_PAUSE, Trouble

LIMITS = JobLimits(trouble_seconds=100.0, losses=3)


class Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trouble(clock: Clock) -> Trouble:
    return Trouble(LIMITS, clock)


@pytest.mark.parametrize("error", [InvalidInput("no"), MissingResource("no adapter")])
def test_what_the_client_did_wrong_ends_a_task_at_once_JOB_13(trouble: Trouble, error: Exception) -> None:
    with pytest.raises(type(error)):
        trouble.judge(error, ["a"])  # type: ignore[arg-type]


def test_a_sampler_that_stays_away_is_waited_for_and_says_nothing_of_the_task(trouble: Trouble, clock: Clock) -> None:
    """Refused again and again by the one incarnation that is registered still."""
    pauses = [trouble.judge(Unavailable("refused"), ["a"]) for _ in range(20)]
    assert pauses == sorted(pauses) and pauses[-1] == LONGEST_PAUSE
    clock.now += LIMITS.trouble_seconds + 1
    with pytest.raises(ServerError, match="refused.*tried for 101 s"):
        trouble.judge(Unavailable("refused"), ["a"])


def test_a_task_that_took_several_samplers_with_it_is_given_up(trouble: Trouble) -> None:
    trouble.judge(Unavailable("lost"), ["a"])
    trouble.judge(Unavailable("lost"), ["b"])
    with pytest.raises(ServerError, match="3 samplers were lost"):
        trouble.judge(Unavailable("lost"), ["c"])


@pytest.mark.parametrize("error", [ServerError("the stream was empty"), StaleFence("another life")])
def test_streams_that_end_wrongly_are_counted(trouble: Trouble, error: ServerError) -> None:
    trouble.judge(error, ["a"])
    trouble.judge(error, ["a"])
    with pytest.raises(ServerError, match="3 attempts in a row"):
        trouble.judge(error, ["a"])


def test_a_new_token_forgets_all_of_it(trouble: Trouble) -> None:
    for life in "abcdef":
        trouble.judge(Unavailable("lost"), [life])
        trouble.forget()


def test_no_room_is_waited_for_however_long_others_take(trouble: Trouble, clock: Clock) -> None:
    for _ in range(50):
        clock.now += LIMITS.trouble_seconds
        assert trouble.judge(Busy("no room")) <= LONGEST_PAUSE


def test_a_mesh_that_was_only_full_meanwhile_is_no_mesh_that_was_away(trouble: Trouble, clock: Clock) -> None:
    trouble.judge(Unavailable("gone"))
    clock.now += LIMITS.trouble_seconds
    trouble.judge(Busy("no room"))
    clock.now += 1
    trouble.judge(Unavailable("gone"))
    clock.now += LIMITS.trouble_seconds + 1
    with pytest.raises(ServerError, match="gone"):
        trouble.judge(Unavailable("gone"))
