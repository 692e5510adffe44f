"""Small changes of byte strings: the kind that take a parser somewhere else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

LARGEST = 4096
INTERESTING = (0, 1, -1, 2, 127, 128, 255, 256, 32_767, 65_535, 2**31 - 1, -(2**31), 2**31, 2**63 - 1, -(2**63))
TOKENS = (
    b"null", b"true", b"-1", b"0", b"1e308", b"1e999", b"0.5", b"9223372036854775807", b"9223372036854775808",
    b'""', b"[]", b"{}", b"[[]]", b'"\\ud800"', b'"\\u0000"', b"NaN", b"-0", b'"float32"', b'"int64"', b"[0,1]",
    b'"sparse_crow_indices":[0,0]', b'"shape":[1,1]', b'"x":', b",", b":", b"\xff", b"\x80\x01", b"\x08\x01",
    b"\x12\x00",
)  # fmt: skip

Mutation = Callable[[random.Random, bytearray, Sequence[bytes]], None]


def mutated(rng: random.Random, seed: bytes, others: Sequence[bytes]) -> bytes:
    """One to eight changes in a row; at most LARGEST bytes."""
    data = bytearray(seed)
    for _ in range(1 << rng.randrange(4)):
        rng.choice(MUTATIONS)(rng, data, others)
    return bytes(data[:LARGEST])


def _place(rng: random.Random, data: bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _flip(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _replace(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.randrange(256)


def _cut(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start = _place(rng, data)
    del data[start : start + rng.randrange(1, 17)]


def _truncate(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    del data[_place(rng, data) :]


def _repeat(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start = _place(rng, data)
    part = bytes(data[start : start + rng.randrange(1, 33)])
    data[start:start] = part * rng.randrange(1, 5)


def _token(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    start = _place(rng, data)
    data[start : start + rng.choice((0, 0, 1, 2, 4))] = rng.choice(TOKENS)


def _number(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    value, start = rng.choice(INTERESTING), _place(rng, data)
    kind = rng.choice(["<i", "<q", "text"])
    if kind == "text":
        data[start : start + rng.randrange(3)] = str(value).encode()
    else:
        size = struct.calcsize(kind)
        data[start : start + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


def _splice(rng: random.Random, data: bytearray, others: Sequence[bytes]) -> None:
    other = rng.choice(others) if others else b""
    start = rng.randrange(len(other) + 1)
    data[_place(rng, data) :] = other[start:]


MUTATIONS: tuple[Mutation, ...] = (_flip, _replace, _cut, _truncate, _repeat, _token, _token, _number, _splice)
