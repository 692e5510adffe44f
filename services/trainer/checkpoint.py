"""One version directory of the store: how a slot's image is written into it and read back.

    meta.json                  v1.ArtifactMeta, format_version, optimizer_step, topology, files
    adapter_config.json        PEFT
    adapter_model.safetensors  float32 weights under PEFT names; no slot number anywhere
    optimizer.safetensors      exp_avg.<name>, exp_avg_sq.<name> (kind weights, after a first step)

Images are whole (TP-independent), so a checkpoint loads under any tensor and data parallel size;
`topology` only tells where it came from. Pending gradients are not part of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as parse_tensors
from tinkermesh.v1 import trainer_pb2 as pb

from services.common.artifact_meta import decode_meta, encode_meta
from services.common.errors import InvalidInput, MissingResource
from services.common.store import META_FILE, contained, is_durable
from services.common.tinker_path import DURABLE, WEIGHTS
from services.trainer.engine import Layout, SlotImage
from services.trainer.peft_files import CONFIG_FILE, WEIGHTS_FILE, adapter_config
from services.trainer.tensor_file import Written, checksum, write_tensors

FORMAT_VERSION = 1
OPTIMIZER_FILE = "optimizer.safetensors"
_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an image was taken, told in its metadata."""

    tensor_parallel: int = 1
    data_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a checkpoint must be to fit; `shapes` as Engine.expected_shapes answers them."""

    base_model: str
    layout: Layout
    shapes: Mapping[str, tuple[int, ...]]


def write(directory: Path, image: SlotImage, meta: pb.ArtifactMeta, term: int, origin: Origin) -> None:
    """Fills an empty directory; meta.json comes last. Raises OSError."""
    config = _json(adapter_config(image.layout, image.weights, meta.base_model))
    (directory / CONFIG_FILE).write_bytes(config)
    files = {
        CONFIG_FILE: Written(len(config), checksum(config)),
        WEIGHTS_FILE: write_tensors(directory / WEIGHTS_FILE, image.weights, {"format": "pt"}),
    }
    if image.exp_avg:
        files[OPTIMIZER_FILE] = write_tensors(directory / OPTIMIZER_FILE, _moments(image))
    stored = encode_meta(meta) | {
        "format_version": FORMAT_VERSION,
        "optimizer_step": image.step,
        "topology": {"tensor_parallel": origin.tensor_parallel, "data_parallel": origin.data_parallel},
        "term": term,
        "files": {name: {"bytes": one.size, "blake2b": one.checksum} for name, one in files.items()},
    }
    (directory / META_FILE).write_bytes(_json(stored))


def read(root: Path, relative: str, wanted: Wanted, *, optimizer: bool) -> SlotImage:
    """The whole image out of one pinned version, every part of it checked.

    Raises MissingResource, or InvalidInput naming the file and what is wrong with it.
    """
    directory = contained(root, relative)
    name = _shown(relative)
    meta = _read_meta(directory, name)
    step = _check_meta(meta, name, wanted, DURABLE if is_durable(relative) else WEIGHTS)
    weights = _read_tensors(directory, name, meta, WEIGHTS_FILE)
    _check_tensors(weights, wanted.shapes, f"{name}: {WEIGHTS_FILE}")
    if not optimizer:
        return SlotImage(wanted.layout, weights)
    averages, squares = _read_moments(directory, name, meta, wanted, step)
    return SlotImage(wanted.layout, weights, averages, squares, step)


def _moments(image: SlotImage) -> dict[str, torch.Tensor]:
    pairs = zip(_MOMENTS, (image.exp_avg, image.exp_avg_sq), strict=True)
    return {f"{kind}.{name}": tensor for kind, tensors in pairs for name, tensor in tensors.items()}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True).encode()


def _shown(relative: str) -> str:
    """A version's place as its owner may see it: no path outside the store."""
    return f"checkpoint {relative[:300]}"


def _read_meta(directory: Path, name: str) -> dict[str, Any]:
    try:
        meta = json.loads((directory / META_FILE).read_bytes())
    except FileNotFoundError as error:
        raise MissingResource(f"{name} does not exist") from error
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{name}: {META_FILE} cannot be read; the checkpoint is damaged") from error
    if not isinstance(meta, dict):
        raise InvalidInput(f"{name}: {META_FILE} is not an object; the checkpoint is damaged")
    return meta


def _check_meta(meta: dict[str, Any], name: str, wanted: Wanted, kind: str) -> int:
    """The optimizer step. Raises InvalidInput naming the field and both values."""
    if meta.get("format_version") != FORMAT_VERSION:
        raise InvalidInput(
            f"{name}: format_version is {meta.get('format_version')!r}, this trainer reads {FORMAT_VERSION}"
        )
    stored = decode_meta(meta, name)
    if stored.kind != kind:
        raise InvalidInput(f"{name}: kind is {stored.kind!r}; only {kind!r} can be loaded for training from there")
    if stored.base_model != wanted.base_model:
        raise InvalidInput(f"{name}: base_model is {stored.base_model!r}, the model has {wanted.base_model!r}")
    for field in ("rank", "alpha", "train_attn", "train_mlp", "train_unembed"):
        theirs, ours = getattr(stored.layout, field), getattr(wanted.layout, field)
        if theirs != ours:
            raise InvalidInput(f"{name}: {field} is {theirs!r}, the model has {ours!r}")
    step = meta.get("optimizer_step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise InvalidInput(f"{name}: optimizer_step {step!r} is not a count; the checkpoint is damaged")
    return step


def _read_tensors(directory: Path, name: str, meta: dict[str, Any], file: str) -> dict[str, torch.Tensor]:
    """The tensors of one file whose size and checksum are what the metadata says."""
    listed = meta.get("files", {})
    expected = listed.get(file) if isinstance(listed, dict) else None
    if not isinstance(expected, dict):
        raise InvalidInput(f"{name}: {META_FILE} does not list {file}; the checkpoint is damaged")
    try:
        data = (directory / file).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{name}: {file} cannot be read ({error.strerror}); the checkpoint is damaged") from error
    if len(data) != expected.get("bytes") or checksum(data) != expected.get("blake2b"):
        raise InvalidInput(f"{name}: {file} does not match its checksum; the checkpoint is damaged")
    try:
        return dict(parse_tensors(data))
    except SafetensorError as error:
        raise InvalidInput(f"{name}: {file} is not a safetensors file") from error


def _check_tensors(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], where: str) -> None:
    missing, unknown = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if missing or unknown:
        raise InvalidInput(
            f"{where}: {len(missing)} tensors missing, {len(unknown)} unknown, such as {(missing + unknown)[0]}"
        )
    for key, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(shapes[key]):
            raise InvalidInput(f"{where}: {key} has shape {tuple(tensor.shape)}, expected {tuple(shapes[key])}")
        if tensor.dtype != torch.float32:
            raise InvalidInput(f"{where}: {key} is {tensor.dtype}, expected float32")
        if not bool(torch.isfinite(tensor).all()):
            raise InvalidInput(f"{where}: {key} holds values that are not finite")


def _read_moments(
    directory: Path, name: str, meta: dict[str, Any], wanted: Wanted, step: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    if OPTIMIZER_FILE not in meta.get("files", {}):
        if step:
            raise InvalidInput(f"{name} holds no optimizer state; load it without the optimizer")
        return {}, {}
    tensors = _read_tensors(directory, name, meta, OPTIMIZER_FILE)
    shapes = {f"{kind}.{key}": shape for kind in _MOMENTS for key, shape in wanted.shapes.items()}
    _check_tensors(tensors, shapes, f"{name}: {OPTIMIZER_FILE}")
    averages, squares = ({key: tensors[f"{kind}.{key}"] for key in wanted.shapes} for kind in _MOMENTS)
    return averages, squares
