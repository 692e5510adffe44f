"""One JSON object per line, with the ids bound to the task."""

from __future__ import annotations

import json
import logging

import pytest

from services.common import logs


@pytest.fixture
def line(caplog: pytest.LogCaptureFixture):
    def make(message: str) -> dict[str, str]:
        record = logging.LogRecord("services.x", logging.INFO, __file__, 1, message, None, None)
        found: dict[str, str] = json.loads(logs.JsonFormatter("gateway").format(record))
        return found

    return make


def test_bound_ids_are_fields_and_empty_ones_are_left_out(line) -> None:
    with logs.bind(tenant_id="t", model_id=""), logs.bind(request_id="r"):
        found = line("accepted\nsample")
    assert (found["tenant_id"], found["request_id"], found["service"]) == ("t", "r", "gateway")
    assert "model_id" not in found and "trace_id" not in found
    assert found["message"] == "accepted\nsample"


def test_ids_end_with_their_block(line) -> None:
    with logs.bind(request_id="r"):
        pass
    assert "request_id" not in line("later")


def test_a_bound_trace_id_is_that_of_the_request_the_line_is_about(line) -> None:
    with logs.bind(trace_id="0af7"):
        assert line("settled")["trace_id"] == "0af7"
