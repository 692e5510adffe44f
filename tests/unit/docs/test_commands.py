"""A command that a page shows is run by a test, or says what it needs; one in running text exists as it stands."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.main import get_command

from services.local import cli

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]

RUN_BY = {
    "cli.md": "tests/mesh/test_cli_page.py",
    "install.md": "tests/chart/test_install_guide.py",
    "jobs.md": "tests/mesh/test_jobs_page.py",
    "openai.md": "tests/mesh/test_openai_page.py",
    "operate.md": "tests/mesh/test_grpcurl.py",
    "recovery.md": "tests/mesh/test_grpcurl.py",
    "runbook.md": "tests/unit/docs/test_runbook.py",
    "tenants.md": "tests/mesh/test_tenants_page.py",
    "upgrade.md": "tests/mesh/test_grpcurl.py",
}
"""Page with bash blocks -> the test that runs each of them."""
PROGRAMS = {"README.md": "tests/mesh/test_readme.py", "losses.md": "", "openai.md": "tests/mesh/test_openai_page.py"}
"""Page with Python -> the test that runs it; "" = fragments, which are parsed here."""
NEEDS = re.compile(r"\b[Nn]eeds?\b")
LINES_BEFORE = 4


class Block(NamedTuple):
    page: Path
    kind: str
    body: str
    before: str  # the paragraph above it

    def __str__(self) -> str:
        return f"{self.page.name}: {self.body.splitlines()[0][:60]}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in BLOCK.finditer(text):
        before = text[: found.start()].rstrip().splitlines()[-LINES_BEFORE:]
        yield Block(page, found[1], found[2], " ".join(before))


BLOCKS = [block for page in PAGES for block in blocks(page)]


def lines(block: Block) -> list[str]:
    joined = block.body.replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]


def commands() -> Iterator[tuple[str, str]]:
    """(page, command) of the blocks in no language and of the words in backticks that begin like a command."""
    begins = re.compile(r"(make|tinkermesh|python -m|helm|\.venv/bin/\w+) \S")
    for page in PAGES:
        prose = BLOCK.sub("", page.read_text())
        for quoted in re.findall(r"`([^`\n]+)`", prose):
            if begins.match(quoted):
                yield page.name, quoted
    for block in BLOCKS:
        if block.kind == "":
            yield from ((block.page.name, line) for line in lines(block) if begins.match(line))


COMMANDS = sorted(set(commands()))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "bash"], ids=str)
def test_a_block_for_the_shell_is_on_a_page_whose_commands_a_test_runs(block: Block) -> None:
    runner = RUN_BY[block.page.name]
    assert block.page.name in (ROOT / runner).read_text(), f"{runner} does not read {block.page.name}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "console"], ids=str)
def test_a_block_that_no_test_runs_says_what_it_needs(block: Block) -> None:
    assert NEEDS.search(block.before), f"{block.before!r} does not say what {block.body!r} needs"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.kind == "python"], ids=str)
def test_a_program_is_run_or_at_least_one(block: Block) -> None:
    compile(block.body, str(block), "exec")
    if runner := PROGRAMS[block.page.name]:
        assert block.page.name in (ROOT / runner).read_text()


def test_every_block_has_a_kind_that_is_looked_at() -> None:
    known = {"bash", "console", "python", "json", "yaml", "text", ""}
    assert {block.kind for block in BLOCKS} <= known


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_a_command_in_running_text_exists_as_it_stands(page: str, command: str) -> None:
    words = [word for word in shlex.split(command, comments=True) if word != "..."]
    if words[0] == "make":
        assert words[1] in TARGETS, f"{page}: {command}"
    elif words[0] == "tinkermesh":
        assert not unknown_words(words[1:]), f"{page}: {command}"
    elif words[:2] == ["python", "-m"]:
        ours = words[2].split(".")[0] in ("services", "tests", "tools", "benchmarks")
        assert not ours or importlib.util.find_spec(words[2]) is not None, f"{page}: {command}"


def unknown_words(words: list[str]) -> list[str]:
    """Of a tinkermesh command: a subcommand or an option that there is not."""
    place: Any = get_command(cli.app)
    while words and not words[0].startswith(("-", "[")) and hasattr(place, "commands"):
        if words[0] not in place.commands:
            return words[:1]
        place, words = place.commands[words[0]], words[1:]
    options = {name for one in place.params for name in (*one.opts, *one.secondary_opts)}
    named = [word.strip("[]").partition("=")[0] for word in words if word.strip("[]").startswith("--")]
    return [name for name in named if name not in {*options, "--help"}]


def test_words_that_are_no_command_are_found() -> None:
    """The control of the above."""
    assert unknown_words(["up", "--modle", "x"]) == ["--modle"] and unknown_words(["stauts"]) == ["stauts"]
    assert unknown_words(["keys", "create", "[--label", "NOTE]"]) == []
    assert len(COMMANDS) > 60 and {"README.md", "local.md", "performance.md"} <= {page for page, _ in COMMANDS}
