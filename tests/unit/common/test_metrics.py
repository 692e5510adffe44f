"""The metrics endpoint by itself: what it answers, whom it refuses, what its labels can be."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common import metrics
from services.common.errors import InvalidInput
from services.common.metrics import COMMON, MetricSet, known, short_method
from services.common.metrics_server import AT_ONCE, MetricsServer, serving
from services.common.settings import ServiceSettings
from tests.doubles.eventually import until
from tests.doubles.scrape import scrape_address


def own() -> MetricSet:
    made = MetricSet("tinkermesh_test")
    made.counter("things_total", "Things.", ["kind"]).labels("a").inc(3)
    return made


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", (COMMON, own()))
    made.start()
    yield made
    made.stop()


def test_a_scrape_shows_the_service_s_own_metrics_and_the_process(server: MetricsServer) -> None:
    found = scrape_address(f"127.0.0.1:{server.port}")
    assert found.values("tinkermesh_test_things_total", kind="a") == [3.0]
    assert found.values("process_start_time_seconds")
    assert not [name for name in found.families if name.endswith("_created")]


@pytest.mark.parametrize("path", ["/", "/metrics/x", "/../etc/passwd"])
def test_nothing_but_metrics_is_there(server: MetricsServer, path: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5)
    assert refused.value.code == 404


def test_only_reading_is_answered(server: MetricsServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", data=b"x", timeout=5)
    assert refused.value.code == 501


def test_silent_clients_do_not_take_more_places_than_there_are(server: MetricsServer) -> None:
    """The first ones hold their places until they are dropped; the next is closed unanswered at once."""
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(AT_ONCE)]
    try:
        until(lambda: server._places._value == 0)  # noqa: SLF001
        with socket.create_connection(("127.0.0.1", server.port)) as one_more:
            one_more.settimeout(30)
            assert one_more.recv(1) == b""
    finally:
        for client in silent:
            client.close()
    assert until(lambda: server._places._value == AT_ONCE)  # noqa: SLF001
    assert scrape_address(f"127.0.0.1:{server.port}").families


def test_a_service_without_the_setting_opens_no_port(tmp_path: Path) -> None:
    port_file = tmp_path / "port"
    with serving("gateway", ServiceSettings(metrics_port_file=str(port_file)), own()):
        assert not port_file.exists()
    with serving("gateway", ServiceSettings(metrics_listen="127.0.0.1:0", metrics_port_file=str(port_file)), own()):
        found = scrape_address(f"127.0.0.1:{int(port_file.read_text())}")
    assert found.values("tinkermesh_build_info", service="gateway") == [1.0]


@pytest.mark.parametrize("listen", ["nowhere", "127.0.0.1:99999", "192.0.2.1:0"])
def test_an_address_that_cannot_be_had_is_refused_by_name(listen: str) -> None:
    with pytest.raises(InvalidInput, match="metrics_listen"):
        MetricsServer(listen, ())


def test_a_word_that_is_not_in_the_list_is_no_label() -> None:
    assert known("pass", ("pass", "optim")) == "pass"
    assert known("tml-secret", ("pass", "optim")) == "other"


def test_methods_are_named_without_their_package() -> None:
    assert short_method("/tinkermesh.v1.Scheduler/Submit") == "Scheduler/Submit"


def test_a_call_is_counted_by_how_it_ended() -> None:
    def calls(code: str) -> float:
        name, labels = "tinkermesh_grpc_requests_total", {"method": "Test/Call", "code": code}
        return COMMON.registry.get_sample_value(name, labels) or 0.0

    ticks = iter(range(100))
    with metrics.grpc_call("/t.Test/Call", lambda: next(ticks), stream=False):
        pass
    with pytest.raises(KeyError), metrics.grpc_call("/t.Test/Call", lambda: next(ticks), stream=False):
        raise KeyError
    with metrics.grpc_call("/t.Test/Call", lambda: next(ticks), stream=True) as answered:
        answered.code = "busy"
    assert [calls(code) for code in ("ok", "cancelled", "busy")] == [1.0, 1.0, 1.0]
    assert COMMON.registry.get_sample_value("tinkermesh_grpc_seconds_sum", {"method": "Test/Call"}) == 2.0
    assert COMMON.registry.get_sample_value("tinkermesh_grpc_requests_open", {"method": "Test/Call"}) == 0.0
