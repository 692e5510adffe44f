"""Make .venvs/prometheus: Debian's prometheus and promtool, for tests of alerts; a no-op where they are installed.

Usage: python tools/prometheus_tool.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DIRECTORY = Path(__file__).resolve().parent.parent / ".venvs" / "prometheus"
NAMES = ("prometheus", "promtool")
SECONDS = 300


def program(name: str) -> str | None:
    """Where it is: in DIRECTORY, or installed."""
    own = DIRECTORY / name
    return str(own) if own.is_file() else shutil.which(name)


def fetch() -> None:
    """Unpacks the package without installing it: nothing is started. Raises CalledProcessError, TimeoutExpired."""
    with tempfile.TemporaryDirectory() as text:
        place = Path(text)
        place.chmod(0o755)
        if _download(place) != 0:
            subprocess.run(["apt-get", "-qq", "update"], check=True, timeout=SECONDS)
            if _download(place) != 0:
                raise subprocess.CalledProcessError(100, "apt-get download prometheus")
        package = next(place.glob("prometheus_*.deb"))
        subprocess.run(["dpkg-deb", "-x", str(package), str(place / "x")], check=True, timeout=SECONDS)
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        for name in NAMES:
            temporary = DIRECTORY / f".{name}.tmp"
            shutil.copy2(place / "x" / "usr" / "bin" / name, temporary)
            temporary.replace(DIRECTORY / name)


def _download(place: Path) -> int:
    command = ["apt-get", "-qq", "download", "prometheus"]
    done = subprocess.run(command, cwd=place, capture_output=True, timeout=SECONDS, check=False)
    return done.returncode if any(place.glob("prometheus_*.deb")) else done.returncode or 1


def main() -> int:
    if all(program(name) for name in NAMES):
        return 0
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        print("there is no apt-get here: install prometheus and promtool yourself", file=sys.stderr)
        return 1
    try:
        fetch()
    except (subprocess.SubprocessError, OSError) as error:
        print(f"prometheus could not be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
