"""What a gateway counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.responses import Response

from services.common.metrics import MetricSet

GATEWAY = MetricSet("tinkermesh_gateway")

_requests = GATEWAY.counter(
    "http_requests_total", "HTTP requests answered, by route and status code.", ["route", "code"]
)
_seconds = GATEWAY.histogram(
    "http_seconds",
    "Time to a request's answer. Long polls (retrieve_future, retrieve_futures) last as long as they wait.",
    ["route"],
)
_open = GATEWAY.gauge("http_requests_open", "HTTP requests under way; long polls are most of them.")
_refused = GATEWAY.counter(
    "refused_total",
    "Requests refused, by the class of the error (docs/rest.md) and whose fault.",
    ["error", "category"],
)
_dropped = GATEWAY.counter(
    "dropped_inputs_total", "Loss inputs that clients sent and the chosen loss does not read.", ["input"]
)
_completions = GATEWAY.counter(
    "completions_total",
    "Requests of the OpenAI routes that a scheduler took up, by route, whether they were streamed, and how they "
    "ended: ok, gone (the client went), or the class of the error.",
    ["route", "streamed", "outcome"],
)
_completions_open = GATEWAY.gauge("completions_open", "Those under way, streams until their last byte.")
_completion_seconds = GATEWAY.histogram("completion_seconds", "From such a request to its last byte.", ["route"])
_completion_first = GATEWAY.histogram(
    "completion_first_token_seconds", "From such a request to the first that was generated.", ["route"]
)
_completion_tokens = GATEWAY.counter(
    "completion_tokens_total", "Tokens of the OpenAI routes: prompt, cached (of those) and completion.", ["kind"]
)
_waits = GATEWAY.gauge("open_waits", "Requests that some client waits for here.")
_polls_drained = GATEWAY.gauge("draining", "1 while this gateway answers open polls to stop.")

_GONE = "499"


class Answer:
    """The status a request got; 499 until it has one: its client has gone."""

    code = _GONE


@contextmanager
def request(route: str) -> Iterator[Answer]:
    """Counts the block as one request; `route` is a template of the application, or "other"."""
    started, answer = time.monotonic(), Answer()
    _open.inc()
    try:
        yield answer
    finally:
        _open.dec()
        _requests.labels(route, answer.code).inc()
        _seconds.labels(route).observe(time.monotonic() - started)


def answered(answer: Answer, response: Response) -> None:
    answer.code = str(response.status_code)


def refused(code: str, category: str) -> None:
    _refused.labels(code, category).inc()


class Completing:
    """One request of the OpenAI routes as it is counted; `outcome` is set where it is known."""

    def __init__(self, route: str, streamed: bool) -> None:
        self.outcome = "gone"
        self._route = route
        self._streamed = str(streamed).lower()
        self._began = time.monotonic()

    def first(self) -> None:
        _completion_first.labels(self._route).observe(time.monotonic() - self._began)

    def ended(self, prompt: int, cached: int, completion: int) -> None:
        _completions.labels(self._route, self._streamed, self.outcome).inc()
        _completion_seconds.labels(self._route).observe(time.monotonic() - self._began)
        for kind, count in (("prompt", prompt), ("cached", cached), ("completion", completion)):
            _completion_tokens.labels(kind).inc(count)


def dropped(inputs: dict[str, int]) -> None:
    """`inputs` are names the gateway's validation knows."""
    for name, count in inputs.items():
        _dropped.labels(name).inc(count)


def completions_open(count: Callable[[], int]) -> None:
    """Read at each scrape."""
    _completions_open.set_function(count)


def watching(open_waits: Callable[[], int], draining: Callable[[], bool]) -> None:
    """Read at each scrape."""
    _waits.set_function(open_waits)
    _polls_drained.set_function(lambda: float(draining()))
