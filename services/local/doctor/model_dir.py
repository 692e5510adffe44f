"""The base model's directory: configuration, weights and tokenizer, present and fitting together.

Headers are read and no weights, so a large model takes no longer than a small one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.common.findings import Finding, error, ok, warning

ARCHITECTURES = ("LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM")
"""What services/trainer/megatron trains."""
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")
EMBEDDING = "model.embed_tokens.weight"
LARGEST_HEADER = 100 << 20
AGAIN = "copy the model's directory again from where it came from"
Json = dict[str, Any]


class Broken(Exception):
    """A file that is not what it should be; the text says what is wrong."""


def model(directory: Path) -> Iterator[Finding]:
    try:
        config = _config(directory)
    except Broken as wrong:
        yield error("model", str(wrong), f"name a model in Hugging Face layout with --model; {AGAIN}")
        return
    yield _architecture(directory, config)
    try:
        yield ok("model weights", _weights(directory, config))
    except Broken as wrong:
        yield error("model weights", str(wrong), AGAIN)
    yield _tokenizer(directory, config)


def _config(directory: Path) -> Json:
    """Raises Broken."""
    config = _json(directory / "config.json")
    for name in ("architectures", "vocab_size", "max_position_embeddings", "hidden_size"):
        if not config.get(name):
            raise Broken(f"{directory / 'config.json'} has no {name}")
    return config


def _json(path: Path) -> Json:
    try:
        content = json.loads(path.read_bytes())
    except OSError as wrong:
        raise Broken(f"{path}: {wrong.strerror}") from wrong
    except ValueError as wrong:
        raise Broken(f"{path} is not JSON: {wrong}") from wrong
    if not isinstance(content, dict):
        raise Broken(f"{path} is not an object")
    return content


def _architecture(directory: Path, config: Json) -> Finding:
    kind = str(config["architectures"][0])
    if kind not in ARCHITECTURES:
        return error("model", f"{directory} is a {kind}", f"serve one of {', '.join(ARCHITECTURES)}")
    return ok("model", f"{directory} is a {kind}, {config['max_position_embeddings']} positions")


def _weights(directory: Path, config: Json) -> str:
    """What is there. Raises Broken."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise Broken(f"{directory} has no *.safetensors")
    index = directory / "model.safetensors.index.json"
    wanted = set(_json(index).get("weight_map", {}).values()) if index.exists() else set()
    if missing := sorted(wanted - {path.name for path in files}):
        raise Broken(f"{index.name} names {', '.join(missing[:3])}, not there")
    tensors: Json = {}
    for path in files:
        tensors |= _header(path)
    shape = tensors.get(EMBEDDING, {}).get("shape")
    if shape is not None and shape != [config["vocab_size"], config["hidden_size"]]:
        raise Broken(f"the embedding is {shape}, config.json says {[config['vocab_size'], config['hidden_size']]}")
    return f"{len(tensors)} tensors in {len(files)} files, {sum(path.stat().st_size for path in files) >> 20} MiB"


def _header(path: Path) -> Json:
    """A safetensors header: 8 bytes of length, JSON, then exactly the data it tells of. Raises Broken."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= LARGEST_HEADER:
            raise Broken(f"{path.name} is no safetensors file")
        try:
            header = json.loads(file.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise Broken(f"{path.name} has a broken header: {wrong}") from wrong
    size, whole = path.stat().st_size, 8 + length + max(ends, default=0)
    if size != whole:
        raise Broken(f"{path.name} has {size} bytes where its header tells of {whole}: the copy was cut off")
    return {name: tensor for name, tensor in header.items() if name != "__metadata__"}


def _tokenizer(directory: Path, config: Json) -> Finding:
    """Clients load it from this directory, or by the model's name."""
    found = next((name for name in TOKENIZERS if (directory / name).is_file()), "")
    if not found:
        remedy = f"put the model's {TOKENIZERS[0]} and tokenizer_config.json there: clients cannot make tokens without"
        return error("tokenizer", f"{directory} has no {' or '.join(TOKENIZERS[:2])}", remedy)
    if found != "tokenizer.json":
        return ok("tokenizer", found)
    try:
        largest = _largest_id(_json(directory / found))
    except (Broken, KeyError, TypeError, ValueError) as wrong:
        return error("tokenizer", f"tokenizer.json cannot be read: {wrong}", AGAIN)
    if largest >= config["vocab_size"]:
        text = f"tokenizer.json has token {largest}, the model knows {config['vocab_size']}"
        return error("tokenizer", text, "use the tokenizer of this very model")
    if not (directory / "tokenizer_config.json").is_file():
        remedy = f"put the model's tokenizer_config.json there; {AGAIN}"
        return warning(
            "tokenizer", f"{directory} has no tokenizer_config.json: no chat template, no special tokens", remedy
        )
    return ok("tokenizer", f"tokenizer.json, tokens 0 to {largest} of {config['vocab_size']}")


def _largest_id(tokenizer: Json) -> int:
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    ids = list(vocabulary.values()) if isinstance(vocabulary, dict) else [len(vocabulary) - 1]
    return max([*ids, *(int(token["id"]) for token in tokenizer.get("added_tokens", []))], default=0)
