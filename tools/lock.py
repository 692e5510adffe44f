"""Write requirements/<extra>.txt: every package of an extra, pinned, ready for `pip install --no-deps`.

Left out are the packages that only come in as dependencies and cannot work beside the CPU
build of torch (their builds want CUDA), and tinkermesh itself.
Usage: python tools/lock.py [EXTRA ...]    (default: all that have a file)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = ("gateway", "scheduler", "control", "trainer-cpu", "sampler-cpu", "local", "test")
UNUSABLE = {"torchvision", "torchaudio", "torchcodec", "triton", "tinkermesh"}
BUILD = ("setuptools", "wheel")
HEADER = "# Made by tools/lock.py from pyproject.toml's extra '{extra}'; install with --no-deps.\n"


def resolve(extra: str) -> list[str]:
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
        command += ["--report", report.name, f"{ROOT}[{extra}]", *BUILD]
        subprocess.run(command, check=True)
        entries = json.loads(Path(report.name).read_bytes())["install"]
    pins = {e["metadata"]["name"].lower(): e["metadata"]["version"] for e in entries}
    return [f"{name}=={pins[name]}" for name in sorted(pins) if name not in UNUSABLE]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", default=EXTRAS)
    for extra in parser.parse_args().extras:
        lines = resolve(extra)
        target = ROOT / "requirements" / f"{extra}.txt"
        target.write_text(HEADER.format(extra=extra) + "\n".join(lines) + "\n")
        print(f"{target.relative_to(ROOT)}: {len(lines)} packages")


if __name__ == "__main__":
    main()
