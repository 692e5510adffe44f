"""The boundary around every service's main."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.common.errors import Unavailable
from services.common.process import service_main, write_port
from services.common.settings import ServiceSettings


class Settings(ServiceSettings, frozen=True, kw_only=True):
    store_root: str


@pytest.fixture(autouse=True)
def _restored_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TINKERMESH_TRAINER_STORE_ROOT", "s")
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def outcome(error: BaseException | None = None) -> int:
    def run(settings: Settings) -> None:
        assert settings.store_root == "s"
        if error is not None:
            raise error

    return service_main("trainer", Settings, lambda _: "one", run)


def test_an_orderly_end_is_exit_code_0() -> None:
    assert outcome() == 0


def test_an_expected_failure_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(Unavailable("Redis is away")) == 1
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["message"], line["service"]) == ("the trainer ends: Redis is away", "trainer")
    assert "exception" not in line


def test_an_unexpected_failure_is_told_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(ZeroDivisionError("x")) == 1
    assert "ZeroDivisionError" in json.loads(capsys.readouterr().err.splitlines()[-1])["exception"]


def test_a_missing_setting_ends_the_process_naming_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("TINKERMESH_TRAINER_STORE_ROOT")
    assert outcome() == 1
    assert "store_root" in capsys.readouterr().err


def test_the_port_file_holds_the_port_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    write_port(str(tmp_path / "port"), 7002)
    write_port("", 7003)
    assert (tmp_path / "port").read_text().strip() == "7002"
    assert [path.name for path in tmp_path.iterdir()] == ["port"]
