"""Build kube-apiserver, kube-controller-manager and kube-scheduler into ~/.cache/tinkermesh/kube/bin, for tests/kube.

No package index carries them. Debian 12's source package `kubernetes` holds all of version 1.20.2 and builds with its
own Go. A Kubernetes server release of any later version serves as well: put its binaries into a directory and name it
in TINKERMESH_TEST_KUBE_BINARIES.
Usage: python tools/kube_server.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HOME = Path.home() / ".cache" / "tinkermesh" / "kube"
PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PACKAGES = ("golang-go", "dpkg-dev", "rsync", "make", "etcd-server")
VERSION = """KUBE_GIT_COMMIT='x'
KUBE_GIT_TREE_STATE='clean'
KUBE_GIT_VERSION='v1.20.2'
KUBE_GIT_MAJOR='1'
KUBE_GIT_MINOR='20'
"""


def unpack() -> Path:
    """The source tree. Raises SystemExit where apt knows no such source."""
    tree = HOME / "source"
    if tree.is_dir():
        return tree
    fetched = subprocess.run(["apt-get", "source", "-q", "--download-only", "kubernetes"], cwd=HOME, check=False)
    found = sorted(HOME.glob("kubernetes_1.20*.dsc"))
    if fetched.returncode or not found:
        raise SystemExit("apt has no source package kubernetes 1.20: this needs Debian 12 with deb-src enabled")
    subprocess.run(["dpkg-source", "-x", str(found[0]), str(tree)], check=True, stdout=subprocess.DEVNULL)
    return tree


def build(tree: Path, name: str) -> None:
    """A no-op when it is there."""
    target = HOME / "bin" / name
    if target.is_file():
        return
    environment = {**os.environ, "KUBE_GIT_VERSION_FILE": str(HOME / "version"), "GOLDFLAGS": "-s -w"}
    subprocess.run(["make", f"WHAT=cmd/{name}"], cwd=tree, env=environment, check=True)
    shutil.copy2(tree / "_output" / "bin" / name, target)


def main() -> int:
    (HOME / "bin").mkdir(parents=True, exist_ok=True)
    if all((HOME / "bin" / name).is_file() for name in PROGRAMS) and shutil.which("etcd"):
        return 0
    install = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *PACKAGES]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    (HOME / "version").write_text(VERSION)
    tree = unpack()
    for name in PROGRAMS:
        build(tree, name)
    shutil.rmtree(tree)
    return 0


if __name__ == "__main__":
    sys.exit(main())
