"""The images' build files, linted; those without a GPU are also built and run (tests/podman)."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.chart.helm import EXAMPLES, ROOT, example, render, validator

FILES = sorted((ROOT / "images").glob("*/Containerfile"))
NAMES = [path.parent.name for path in FILES]


def instructions(path: Path) -> list[tuple[str, str]]:
    """Each instruction with its text, continuation lines joined."""
    text = re.sub(r"\\\n\s*", " ", path.read_text())
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_an_image_is_pinned_unprivileged_and_says_whether_it_is_healthy(path: Path) -> None:
    found = instructions(path)
    base = next(rest for word, rest in found if word == "ARG" and rest.startswith("BASE="))
    assert re.search(r":[\w.-]*\d+\.\d+\.\d+[\w.-]*$", base), f"{base} is not one version"
    users = [rest for word, rest in found if word == "USER"]
    assert users == ["10001:10001"], "the chart's runAsUser"
    assert any(word == "HEALTHCHECK" for word, _ in found)
    assert any(word == "CMD" and "services." in rest for word, rest in found)


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_everything_copied_into_an_image_exists_and_is_not_ignored(path: Path) -> None:
    ignored = (ROOT / ".containerignore").read_text()
    assert ignored == (ROOT / ".dockerignore").read_text()
    admitted = {line[1:] for line in ignored.splitlines() if line.startswith("!")}
    for word, rest in instructions(path):
        for source in rest.split()[:-1] if word == "COPY" else []:
            assert (ROOT / source).exists(), source
            assert source.split("/")[0] in admitted, source


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_installed_packages_are_pinned(path: Path) -> None:
    for word, rest in instructions(path):
        if word == "RUN" and "pip install" in rest:
            assert "--no-deps" in rest
            assert "-r /build/" in rest or rest.count("/build") >= 1


def test_the_control_image_has_no_torch() -> None:
    assert not re.search(r"^(torch|vllm|megatron)", (ROOT / "requirements" / "control.txt").read_text(), re.M)


def test_the_chart_names_images_that_are_made_here() -> None:
    made = {f"tinkermesh-{name}" for name in NAMES}
    for values in ({}, *map(example, EXAMPLES)):
        for template in render(values).pod_templates().values():
            image = template["spec"]["containers"][0]["image"].rpartition("/")[2].partition(":")[0]
            assert image in made | {"valkey", "jaeger"}, image


ACCEPTED = {
    "CKV_DOCKER_7": "the base is an argument; its default is one version (tested above)",
}


def test_a_scanner_finds_nothing_else(tmp_path: Path) -> None:
    for path in FILES:
        place = tmp_path / path.parent.name
        place.mkdir()
        (place / "Dockerfile").write_text(path.read_text())
    command = [*validator("checkov"), "--framework", "dockerfile", "-d", str(tmp_path), "-o", "json", "--skip-download"]
    done = subprocess.run([*command, "--quiet"], capture_output=True, text=True, timeout=200, check=False)
    failed = json.loads(done.stdout)["results"]["failed_checks"]
    assert {(check["check_id"], check["file_path"]) for check in failed if check["check_id"] not in ACCEPTED} == set()
