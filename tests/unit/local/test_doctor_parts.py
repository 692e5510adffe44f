"""The doctor's tables are those of the code they speak of, and its comparisons of versions and dates are right."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from msgspec import structs
from tinkermesh.v1 import admin_pb2

from services.local import addresses, endpoints
from services.local.doctor import engines, model_dir, ports, reach
from services.local.settings import LocalSettings
from services.trainer.megatron.architecture import SUPPORTED

ROOT = Path(__file__).resolve().parents[3]


def test_the_pins_are_those_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    wanted = {*extras["trainer"], *extras["sampler"]}
    assert {f"{name}{pin}" for name, pin in engines.PINS.items()} == wanted


def test_the_architectures_are_those_the_trainer_builds() -> None:
    assert set(model_dir.ARCHITECTURES) == set(SUPPORTED)


@pytest.mark.parametrize(
    ("installed", "pin", "fits"),
    [
        ("2.13.0+cpu", ">=2.13", True),
        ("2.9.1", ">=2.13", False),
        ("3.0", ">=2.13", True),
        ("0.32.7", "==0.32.*", True),
        ("0.33.0", "==0.32.*", False),
        ("0.16.1", "==0.16.1", True),
        ("0.16.10", "==0.16.1", False),
        ("unknown", ">=2.13", False),
    ],
)
def test_versions_are_compared_as_numbers(installed: str, pin: str, fits: bool) -> None:
    assert engines.fits(installed, pin) is fits


def test_an_engine_that_cannot_be_imported_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "safetensors.py").write_text("raise ImportError('its library is missing')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for name in ("torch", "megatron-core", "vllm"):
        monkeypatch.setitem(engines.MODULES, name, "json")  # type: ignore[arg-type]
    found = {one.check: one for one in engines.engines(ours=True, deep=True)}
    assert found["engine safetensors import"].level == "error"
    assert "its library is missing" in found["engine safetensors import"].text
    assert found["engine torch import"].level == "ok"


def test_the_ports_of_a_mesh_that_ran_are_those_of_both_its_samplers(tmp_path: Path) -> None:
    """Negative control: where none ran, the port that was kept for one is not looked at."""
    found = []
    free = LocalSettings(
        model=tmp_path, model_name="m", state_dir=tmp_path,
        port=0, redis_port=0, scheduler_port=0, trainer_port=0, sampler_port=0,
    )  # fmt: skip
    for chosen in (structs.replace(free, prefill_decode=True), structs.replace(free, sampler=False)):
        chosen.run_dir.mkdir(exist_ok=True)
        reserved = addresses.reserve(chosen)
        with reserved.gateway:
            endpoints.write(chosen, reserved)
        last = endpoints.read(tmp_path)
        assert last is not None
        used = [f"{host}:{port}" for option, host, port in ports._used(last) if option == "--sampler-port"]
        found.append((used, list(reserved.samplers)))
    (both, those), (none, _) = found
    assert both == those and len(both) == 2 and none == []


@pytest.mark.parametrize(
    ("fields", "level", "text"),
    [
        ({}, "", ""),
        ({"seen_ms_ago": 60_000}, "note", "no live sampler"),
        ({"draining": True}, "warning", "drained"),
        (
            {"role": "decode", "unpaired": "one: dtype differs"},
            "warning",
            "decode sampler two has no partner: one: dtype",
        ),
        ({"seen_ms_ago": 60_000, "unpaired": "one: dtype differs"}, "note", "no live sampler"),
    ],
)
def test_samplers_that_cannot_take_samples_are_found(fields: dict[str, object], level: str, text: str) -> None:
    report = admin_pb2.SamplerReport(sampler_id="two", **fields)  # type: ignore[arg-type]
    found = list(reach._samplers("pool p", [report]))
    assert [one.level for one in found] == ([level] if level else [])
    assert all(text in one.text and one.remedy for one in found)
