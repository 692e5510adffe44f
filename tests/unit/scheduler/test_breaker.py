"""FAIL-16 on the core: what makes the circuit breaker trip, and what does not."""

from __future__ import annotations

from services.scheduler.core.breaker import TRIPS, Breaker


def test_lone_failures_of_different_models_in_a_row_trip_it_FAIL_16() -> None:
    breaker = Breaker()
    ends = [breaker.saw([f"model{n}"], failed=True, lone=True) for n in range(TRIPS)]
    assert ends == [False] * (TRIPS - 1) + [True]


def test_one_success_starts_the_count_anew_FAIL_16() -> None:
    breaker = Breaker()
    for n in range(10 * TRIPS):
        assert not breaker.saw([f"model{n}"], failed=n % TRIPS != 0, lone=True)


def test_shared_units_and_one_model_alone_do_not_trip_it_FAIL_16() -> None:
    """A pass that was shared has still to be halved; a client may repeat what only fails for itself."""
    breaker = Breaker()
    assert not any(breaker.saw([f"a{n}", f"b{n}"], failed=True, lone=False) for n in range(3 * TRIPS))
    assert not any(breaker.saw(["one"], failed=True, lone=True) for _ in range(3 * TRIPS))
    assert breaker.saw(["another"], failed=True, lone=True)
