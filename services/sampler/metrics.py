"""What a sampler counts beside its engine. Imports no vLLM: the double of the tests counts with it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter

from services.common.errors import BY_CODE, TinkermeshError
from services.common.metrics import SECONDS, MetricSet, known

SAMPLER = MetricSet("tinkermesh_sampler")

ADAPTER_STATES = ("loading", "ready", "draining", "leaving")

_samples = SAMPLER.counter(
    "samples_total", "Requests to sample, by how they ended: ok, or the class of the error.", ["outcome"]
)
_seconds = SAMPLER.histogram("sample_seconds", "Time of a request that was answered, its adapter's load with it.")
_first_token = SAMPLER.histogram(
    "first_token_seconds", "Time from an admitted stream to its first token, by leg: whole, prefill, decode.", ["leg"]
)
_token_gap = SAMPLER.histogram(
    "token_gap_seconds", "Time between two chunks of a streamed sequence.", buckets=(0.002, *SECONDS[:10])
)
_prompt_tokens = SAMPLER.counter("prompt_tokens_total", "Tokens of prompts of answered requests.")
_cached_tokens = SAMPLER.counter("cached_tokens_total", "Those of them that came from the prefix cache.")
_generated = SAMPLER.counter("generated_tokens_total", "Tokens generated in answered requests.")
_accepted = SAMPLER.gauge("sequences_open", "Sequences accepted and not finished.")
_accepted_most = SAMPLER.gauge("sequences_limit", "How many of those there may be before requests are refused.")
_running = SAMPLER.gauge("engine_sequences", "Sequences in the engine, by state.", ["state"])
_running_most = SAMPLER.gauge("engine_sequences_limit", "How many the engine runs at once.")
_loads = SAMPLER.counter("adapter_loads_total", "Adapters loaded into the engine, by how that ended.", ["outcome"])
_load_seconds = SAMPLER.histogram("adapter_load_seconds", "Time to check and load an adapter.")
_evictions = SAMPLER.counter(
    "adapter_evictions_total", "Adapters that left: their place was wanted, or the scheduler asked.", ["cause"]
)
_adapters = SAMPLER.gauge("adapters", "Adapters that have a place, by state.", ["state"])
_places = SAMPLER.gauge("adapter_places", "Places for adapters.")
_seekers = SAMPLER.gauge("adapter_seekers", "Adapters whose requests wait for a place.")

for _outcome in ("ok", "failed"):
    _loads.labels(_outcome)
for _cause in ("place", "asked"):
    _evictions.labels(_cause)
_samples.labels("ok")
for _leg in ("whole", "prefill", "decode"):
    _first_token.labels(_leg)


@contextmanager
def sample() -> Iterator[None]:
    """Around one request."""
    started, outcome = perf_counter(), "cancelled"
    try:
        yield
        outcome = "ok"
    except TinkermeshError as error:
        outcome = known(error.code, BY_CODE)
        raise
    except Exception:
        outcome = "internal"
        raise
    finally:
        _samples.labels(outcome).inc()
        if outcome == "ok":
            _seconds.observe(perf_counter() - started)


def first_token(leg: str, seconds: float) -> None:
    """`leg`: the name of a Leg."""
    _first_token.labels(leg.removeprefix("LEG_").lower()).observe(seconds)


def token_gap(seconds: float) -> None:
    _token_gap.observe(seconds)


def tokens(prompt: int, cached: int, generated: int) -> None:
    _prompt_tokens.inc(prompt)
    _cached_tokens.inc(min(cached, prompt))
    _generated.inc(generated)


@contextmanager
def adapter_load() -> Iterator[None]:
    """Around one load."""
    started, outcome = perf_counter(), "failed"
    try:
        yield
        outcome = "ok"
    finally:
        _loads.labels(outcome).inc()
        _load_seconds.observe(perf_counter() - started)


def evicted(*, asked: bool) -> None:
    _evictions.labels("asked" if asked else "place").inc()


def watching(
    adapters: Callable[[], Mapping[str, int]],
    seekers: Callable[[], int],
    places: int,
    engine: Callable[[], tuple[int, int]],
    engine_limit: int,
) -> None:
    """Read at each scrape, by its thread; `adapters` by state, `engine`: (running, waiting)."""
    for state in ADAPTER_STATES:
        _adapters.labels(state).set_function(partial(_count_of, adapters, state))
    _seekers.set_function(lambda: float(seekers()))
    _places.set(places)
    _running.labels("running").set_function(lambda: float(engine()[0]))
    _running.labels("waiting").set_function(lambda: float(engine()[1]))
    _running_most.set(engine_limit)


def _count_of(counts: Callable[[], Mapping[str, int]], name: str) -> float:
    return float(counts().get(name, 0))


def watching_sequences(accepted: Callable[[], int], most: int) -> None:
    """Read at each scrape."""
    _accepted.set_function(lambda: float(accepted()))
    _accepted_most.set(most)
