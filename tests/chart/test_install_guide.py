"""Every command of docs/install.md: its files and objects are there. `make kube-test` also runs those of helm."""

from __future__ import annotations

import functools
import re
import shlex
from pathlib import Path

import pytest

from tests.chart.helm import CHART, ROOT, Rendered, any_helm, run

GUIDE = (ROOT / "docs" / "install.md").read_text()
NOTES = (CHART / "templates" / "NOTES.txt").read_text()
RELEASE = "mesh"
# Of programs that no test of this project has.
ELSEWHERE = {"kind": "a cluster of kind"}


def commands() -> list[str]:
    """Lines of the shell blocks, continuations joined, comments and prompts left out."""
    blocks = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def words(command: str) -> list[str]:
    return shlex.split(command, comments=True)


def after(parts: list[str], option: str) -> str:
    return parts[parts.index(option) + 1]


HELM = [command for command in commands() if command.startswith("helm")]
INSTALLS = [command for command in HELM if " install " in command or " upgrade " in command]
KUBECTL = [command for command in commands() if command.startswith("kubectl")]
MAKE = [command for command in commands() if command.startswith("make")]


@functools.cache
def rendered(command: str) -> Rendered:
    """What `helm install` with these files would make."""
    parts = words(command)
    files = [part for place, part in enumerate(parts) if parts[place - 1] == "-f"]
    given = [option for file in files for option in ("-f", str(ROOT / file))]
    namespace = after(parts, "-n")
    done = run(any_helm(), "template", RELEASE, str(CHART), "-n", namespace, *given)
    assert done.returncode == 0, done.stderr
    return Rendered(done.stdout)


def test_every_command_is_one_that_is_looked_at() -> None:
    """A command of another program needs a test, or an entry in ELSEWHERE that says what it needs."""
    known = {"helm", "kubectl", "make", "export", *ELSEWHERE}
    assert {words(command)[0] for command in commands()} <= known
    assert len(INSTALLS) >= 3 and KUBECTL and MAKE


@pytest.mark.parametrize("command", INSTALLS)
def test_an_install_renders_with_the_files_it_names(command: str) -> None:
    parts = words(command)
    assert parts[2] == RELEASE and ROOT / parts[3] == CHART
    assert rendered(command).of_kind("Deployment")


@pytest.mark.parametrize("command", MAKE)
def test_a_make_target_is_there(command: str) -> None:
    parts = words(command)
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets and parts[1] in targets[1].split()
    for value in (part.partition("=")[2] for part in parts[2:] if part.startswith("IMAGES=")):
        assert all((ROOT / "images" / image / "Containerfile").is_file() for image in value.split())


@pytest.mark.parametrize("command", KUBECTL)
def test_what_kubectl_is_told_to_look_at_is_there(command: str) -> None:
    """Objects are those of the installs before; Secrets made by hand are those the examples ask for."""
    everything = [rendered(install) for install in INSTALLS]
    names = {item["metadata"]["name"] for one in everything for item in one.all}
    for kind, name in re.findall(r"\b(deploy|svc|statefulset)/([a-z0-9-]+)", command):
        assert name in names, f"no {kind} {name}"
    parts = words(command)
    if "-f" in parts:
        assert (ROOT / after(parts, "-f")).is_file()
    if "generic" in parts:
        assert any(f"secretName: {after(parts, 'generic')}" in one.text for one in everything) or any(
            f"name: {after(parts, 'generic')}\n" in one.text for one in everything
        )


def test_the_notes_of_an_install_say_the_same_as_the_guide() -> None:
    ran = re.search(r"exec deploy/\S+ \}\} -- (.*)", NOTES) or re.search(r"exec deploy/.* -- (.*)", NOTES)
    assert ran and f"-- {ran[1]}" in GUIDE


def test_every_block_says_what_it_needs() -> None:
    """Under each heading that has commands there is a line that begins with `Needs` or `Run by`."""
    for section in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]:
        if "```bash" in section:
            assert re.search(r"^(Needs|Run by) ", section, re.MULTILINE), section.splitlines()[0]


def test_the_files_the_guide_names_exist() -> None:
    for name in re.findall(r"`(charts/[\w./-]+|examples/[\w./-]+\.yaml)`", GUIDE):
        assert (ROOT / name).exists() or (CHART / name).exists(), name
    for link in re.findall(r"\]\(([\w-]+\.md)\)", GUIDE):
        assert Path(ROOT / "docs" / link).is_file(), link
