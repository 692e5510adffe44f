"""The real grpcurl, and the commands of a Markdown document."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

COMMAND_SECONDS = 60.0
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Documented:
    """One bash block and, when a JSON or text block follows at once, what it is said to print."""

    commands: tuple[str, ...]
    output: str
    kind: str  # json | text | ""

    def __str__(self) -> str:
        return self.commands[0]


def documented(text: str) -> Iterator[Documented]:
    """Every bash block, in order."""
    for block in _BLOCK.finditer(text):
        if block[1] == "bash":
            following = _BLOCK.match(text, block.end() + 1)
            kind, output = (following[1], following[2]) if following else ("", "")
            shown = kind in ("json", "text")
            yield Documented(tuple(_commands(block[2])), output if shown else "", kind if shown else "")


def _commands(body: str) -> Iterator[str]:
    joined = body.replace("\\\n", " ")
    return (line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#"))


def run(command: str, replaced: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """`command` in bash, with this environment's programs first on the path."""
    for name, value in replaced.items():
        command = command.replace(name, value)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
