"""What makes two submissions of one key the same: 16 bytes over the decoded command.

Encodings do not matter (JSON, protobuf and zstd forms of one command agree), nor does the
sampling_session_seq_id of an unnamed save, which the SDK changes when it retries.
"""

from __future__ import annotations

import hashlib

from tinkermesh.v1 import types_pb2 as types


def fingerprint(command: types.Command, payload: bytes) -> bytes:
    """blake2b-128 over the command with sorted maps, then the payload."""
    encoded = _stable(command).SerializeToString(deterministic=True)
    digest = hashlib.blake2b(len(encoded).to_bytes(8, "little"), digest_size=16)
    digest.update(encoded)
    digest.update(payload)
    return digest.digest()


def _stable(command: types.Command) -> types.Command:
    """`command` without what changes between retries."""
    if not command.save_for_sampler.HasField("sampling_session_seq_id"):
        return command
    stable = types.Command()
    stable.CopyFrom(command)
    stable.save_for_sampler.sampling_session_seq_id = 0
    return stable
