"""Generated stubs stay in step with their protos, and our wire messages with the SDK's bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor import FieldDescriptor
from tinker.proto import tinker_public_pb2 as sdk
from tinkermesh.wire.v1 import wire_pb2 as ours

ROOT = Path(__file__).resolve().parents[3]


def test_committed_stubs_match_the_protos() -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = [sys.executable, "tools/make_protos.py", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def shape(field: FieldDescriptor) -> tuple[str, int, bool, str]:
    nested = field.message_type.name if field.message_type else field.enum_type.name if field.enum_type else ""
    return field.name, field.type, field.is_repeated, nested


def differences() -> list[str]:
    found = []
    for name, message in ours.DESCRIPTOR.message_types_by_name.items():
        theirs = sdk.DESCRIPTOR.message_types_by_name[name]
        for number, field in message.fields_by_number.items():
            other = theirs.fields_by_number.get(number)
            if other is None or shape(field) != shape(other):
                found.append(f"{name}.{field.name} = {number}")
        found += [
            f"{name}.{f.name} is missing"
            for n, f in theirs.fields_by_number.items()
            if n not in message.fields_by_number
        ]
    return found


def test_wire_messages_have_the_sdk_field_numbers_API_09() -> None:
    assert differences() == []


def test_both_descriptors_live_in_one_process() -> None:
    request = ours.ForwardBackwardRequest(model_id="m", seq_id=3, loss_fn="cross_entropy")
    assert sdk.ForwardBackwardRequest.FromString(request.SerializeToString()).seq_id == 3
