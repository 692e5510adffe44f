"""Names and shapes of the tensors in safetensors files, from their headers alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.errors import InvalidInput

_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 64 << 20
_ITEM_BYTES = {"F32": 4, "BF16": 2, "F16": 2}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    dtype: str
    shape: tuple[int, ...]


def read_shapes(path: Path) -> dict[str, TensorEntry]:
    """Raises InvalidInput when the file is not a whole safetensors file."""
    try:
        header, data_bytes = _read_header(path)
        entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
        _check_extent(entries, data_bytes)
        return {name: TensorEntry(str(e["dtype"]), tuple(int(n) for n in e["shape"])) for name, e in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path.name} is not a complete safetensors file: {error}") from error


def _read_header(path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if not 0 < length <= min(_MAX_HEADER_BYTES, size - _LENGTH_BYTES):
            raise ValueError(f"its header length is {length} and the file has {size} bytes")
        return json.loads(file.read(length)), size - _LENGTH_BYTES - length


def _check_extent(entries: dict[str, dict[str, Any]], data_bytes: int) -> None:
    spans = sorted(_span(name, entry) for name, entry in entries.items())
    end = 0
    for start, stop in spans:
        if start != end:
            raise ValueError(f"its data has a gap or overlap at byte {end}")
        end = stop
    if end != data_bytes:
        raise ValueError(f"its header describes {end} bytes of data and it holds {data_bytes}")


def _span(name: str, entry: dict[str, Any]) -> tuple[int, int]:
    start, stop = (int(offset) for offset in entry["data_offsets"])
    size = _ITEM_BYTES.get(str(entry["dtype"]))
    for extent in entry["shape"]:
        size = None if size is None else size * int(extent)
    if size is not None and stop - start != size:
        raise ValueError(f"tensor {name} has {stop - start} bytes, its shape needs {size}")
    return start, stop


def base_linear_shapes(directory: Path) -> dict[str, tuple[int, int]]:
    """Module name -> (out, in) of every matrix of the base model; lm_head also when it is tied."""
    shapes: dict[str, tuple[int, int]] = {}
    for path in sorted(directory.glob("*.safetensors")):
        for name, entry in read_shapes(path).items():
            if name.endswith(".weight") and len(entry.shape) == 2:
                shapes[name.removesuffix(".weight")] = (entry.shape[0], entry.shape[1])
    if "lm_head" not in shapes and "model.embed_tokens" in shapes:
        shapes["lm_head"] = shapes["model.embed_tokens"]
    return shapes
