"""Tracing off: nothing is built. On: what is and is not a trace. Each case in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from services.common.telemetry import trace_id_of, wanted

ROOT = Path(__file__).resolve().parents[3]
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

LOOK = f"""
import sys
from services.common import telemetry as t
t.configure("test", "one")
with t.span("a"), t.span("b", {{"x": 1}}, parent="{TRACEPARENT}", links=["{TRACEPARENT}"]):
    print(bool(t.current_traceparent()), bool(t.current_trace_id()))
    t.annotate({{"y": 2}})
    t.failed("z")
with t.span("alone"):
    print(bool(t.current_traceparent()))
with t.server_span("poll", {{}}, begin=False):
    print(bool(t.current_traceparent()))
with t.server_span("post", {{}}):
    print(bool(t.current_traceparent()))
t.record_span("past", "{TRACEPARENT}", 1, 2, {{}})
print(len(t.server_interceptors()), len(t.client_interceptors()))
t.shutdown()
print(any(name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in sys.modules))
"""


def look(**environment: str) -> list[str]:
    variables = {"PYTHONPATH": f"{ROOT}:{ROOT / 'protos'}", "PATH": "/usr/bin:/bin", **environment}
    done = subprocess.run([sys.executable, "-c", LOOK], env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "True"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_off_builds_nothing_and_imports_no_sdk(environment: dict[str, str]) -> None:
    assert look(**environment) == ["False", "False", "False", "False", "False", "0", "0", "False"]


def test_on_traces_begin_at_posts_only() -> None:
    """A span without a parent, and a poll outside a client's trace, are none."""
    found = look(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    assert found == ["True", "True", "False", "False", "True", "1", "4", "True"]


def test_variables_that_ask_for_traces() -> None:
    assert wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4317"})
    assert not wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": ""})


def test_trace_id_of_a_stored_traceparent() -> None:
    assert trace_id_of(TRACEPARENT) == "0af7651916cd43dd8448eb211c80319c"
    assert trace_id_of("") == trace_id_of("nonsense") == ""
