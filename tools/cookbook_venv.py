"""Make .venvs/cookbook-<version>: the released tinker-cookbook with the newest SDK, kept for later runs.

The cookbook is installed without its own dependency list: one package on it exists for two hosted models
only and cannot be had everywhere. What the recipes import is named here instead.

Usage: python -m tools.cookbook_venv
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

from tools.sdk_venv import MARKER, ROOT, constraints

COOKBOOK = "0.6.1"
SDK = "0.38.0"
NEEDS = (
    "torch", "transformers", "aiohttp", "blobfile", "chz", "cloudpickle", "datasets", "pillow", "pyrage", "termcolor",
    "tiktoken", "sympy", "pylatexenc", "math-verify",
)  # fmt: skip
PLACE = ROOT / ".venvs" / f"cookbook-{COOKBOOK}"


def make(place: Path) -> None:
    """A half-made environment of an earlier attempt is made anew."""
    shutil.rmtree(place, ignore_errors=True)
    venv.create(place, with_pip=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(constraints(place / "constraints.txt")), f"tinker=={SDK}", *NEEDS], check=True)
    subprocess.run([*pip, "--no-deps", f"tinker-cookbook=={COOKBOOK}"], check=True)
    (place / MARKER).touch()


def main() -> int:
    if not (PLACE / MARKER).is_file():
        make(PLACE)
    print(f"cookbook {COOKBOOK}: {PLACE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
