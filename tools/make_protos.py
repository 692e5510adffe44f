"""Generate the protobuf and gRPC stubs beside the .proto files.

``--check`` generates into a temporary folder instead and exits 1 when any committed stub
differs, so CI notices a stub that was not regenerated.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "protos"
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi")


def proto_files() -> list[Path]:
    return sorted(ROOT.rglob("*.proto"))


def has_service(proto: Path) -> bool:
    return any(line.startswith("service ") for line in proto.read_text().splitlines())


def generate(out: Path) -> None:
    include = str(files("grpc_tools") / "_proto")
    for proto in proto_files():
        args = ["protoc", f"-I{ROOT}", f"-I{include}", f"--python_out={out}", f"--mypy_out=quiet:{out}"]
        if has_service(proto):
            args += [f"--grpc_python_out={out}", f"--mypy_grpc_out=quiet:{out}"]
        if protoc.main([*args, str(proto.relative_to(ROOT))]) != 0:
            sys.exit(f"protoc failed on {proto.relative_to(ROOT)}")


def stubs(folder: Path) -> set[Path]:
    return {p.relative_to(folder) for s in SUFFIXES for p in folder.rglob(f"*{s}")}


def drifted(fresh: Path) -> list[str]:
    names = stubs(fresh) | stubs(ROOT)
    return sorted(
        str(n)
        for n in names
        if not (fresh / n).is_file() or not (ROOT / n).is_file() or not filecmp.cmp(fresh / n, ROOT / n, shallow=False)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed stubs, write nothing")
    if not parser.parse_args().check:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as tmp:
        generate(Path(tmp))
        if names := drifted(Path(tmp)):
            sys.exit("stubs out of step with their protos (run `make protos`): " + ", ".join(names))


if __name__ == "__main__":
    main()
