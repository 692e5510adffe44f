"""Blocks for tests: a small geometry, keys and bytes of their own."""

from __future__ import annotations

import hashlib
from pathlib import Path

from services.sampler.kv_connector.block_file import BlockGeometry
from services.sampler.kv_connector.block_store import BlockStore

GEOMETRY = BlockGeometry(layers=2, kv_heads=2, block_size=4, row_bytes=32, head_dim=4, dtype="float32")
NAMESPACE = "n"


def key(name: object) -> str:
    return hashlib.sha256(str(name).encode()).hexdigest()


def payload(name: object) -> bytes:
    return hashlib.shake_128(str(name).encode()).digest(GEOMETRY.block_bytes)


def store(root: Path) -> BlockStore:
    made = BlockStore(root, NAMESPACE, GEOMETRY)
    made.prepare()
    return made
