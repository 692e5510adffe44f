"""Make .venvs/sdk-<version>: one released Tinker SDK in an environment of its own, kept for later runs.

Usage: python tools/sdk_venv.py VERSION [VERSION ...]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "test.txt"
MARKER = ".installed"


def directory(version: str) -> Path:
    return ROOT / ".venvs" / f"sdk-{version}"


def python(version: str) -> Path:
    return directory(version) / "bin" / "python"


def ready(version: str) -> bool:
    return (directory(version) / MARKER).is_file()


def constraints(target: Path) -> Path:
    """Our own pins for everything but the SDK, so that only its version differs."""
    pins = (line for line in LOCK.read_text().splitlines() if "==" in line and not line.startswith("tinker=="))
    target.write_text("\n".join(pins) + "\n")
    return target


def make(version: str) -> None:
    """A half-made environment of an earlier attempt is made anew."""
    place = directory(version)
    if ready(version):
        return
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    command = [str(python(version)), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    command += ["-c", str(constraints(place / "constraints.txt")), f"tinker=={version}"]
    subprocess.run(command, check=True)
    (place / MARKER).touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("versions", nargs="+")
    for version in parser.parse_args().versions:
        make(version)
        print(f"SDK {version}: {directory(version).relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
