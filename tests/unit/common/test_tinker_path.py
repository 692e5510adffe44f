"""VAL-16 and SEC-06: what may name a checkpoint, and that no path leaves the store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.common import store
from services.common.errors import InvalidInput, MissingResource
from services.common.tinker_path import TinkerPath, check_name, parse_checkpoint_id, parse_tinker_path

MODEL = "39aa5eb2-e234-4a95-ab68-896e4cac8c45:train:0"
BAD_NAMES = ["", ".", "..", "a/b", "a\\b", "a\0", ".a", "_a", "a" * 129, "a\n", "ä"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_naming_the_field_VAL_16(name: str) -> None:
    with pytest.raises(InvalidInput, match="path"):
        check_name(name, "path")


@pytest.mark.parametrize("name", ["a", "000020", "final", "A.b-c_d", "9" * 128])
def test_good_names_pass_VAL_16(name: str) -> None:
    assert check_name(name, "path") == name


@pytest.mark.parametrize(
    "text",
    [
        f"tinker://{MODEL}/weights/a/b",
        f"tinker://{MODEL}/weights",
        f"tinker://{MODEL}/other/a",
        f"tinker://{MODEL}/weights/..",
        "tinker://../weights/a",
        f"file://{MODEL}/weights/a",
        "",
    ],
)
def test_bad_paths_are_refused_VAL_16(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_tinker_path(text)


def test_checkpoint_id_carries_a_literal_slash() -> None:
    assert parse_checkpoint_id(MODEL, "weights/final") == TinkerPath(MODEL, "weights", "final")


def publish(root: Path, name: str) -> Path:
    version = root / "runs" / MODEL / "weights" / f"_version_{name}_1"
    version.mkdir(parents=True)
    (version / store.META_FILE).write_text(json.dumps({"name": name}))
    (version.parent / name).symlink_to(version.name)
    return version


def test_resolve_pins_the_version_behind_the_link_CKPT_03(tmp_path: Path) -> None:
    version = publish(tmp_path, "a")
    assert store.resolve(tmp_path, TinkerPath(MODEL, "weights", "a")) == version.resolve()


def test_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingResource, match="weights/none"):
        store.resolve(tmp_path, TinkerPath(MODEL, "weights", "none"))


def test_link_out_of_the_root_is_refused_SEC_06(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    outside.mkdir()
    (outside / store.META_FILE).write_text("{}")
    kind = root / "runs" / MODEL / "weights"
    kind.mkdir(parents=True)
    (kind / "evil").symlink_to(outside)
    with pytest.raises(InvalidInput, match="leaves the store"):
        store.resolve(root, TinkerPath(MODEL, "weights", "evil"))


def test_checks_hold_without_asserts_SEC_06() -> None:
    """The same refusals under ``python -O``."""
    program = (
        "from services.common.tinker_path import parse_tinker_path\n"
        "try:\n    parse_tinker_path('tinker://../weights/a')\n"
        "except Exception as e:\n    print(type(e).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "InvalidInput"
