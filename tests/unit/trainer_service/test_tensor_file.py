"""The files of a checkpoint: byte for byte what safetensors itself writes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from services.common.errors import ContractViolation
from services.trainer.tensor_file import write_tensors

TENSORS = {
    "z.lora_A": torch.arange(12.0).reshape(3, 4),
    "a.lora_B": torch.arange(10.0).reshape(5, 2).t(),  # not contiguous
    "m.é": torch.tensor([1.5]),
}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_is_what_safetensors_writes(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    written = write_tensors(tmp_path / "file", TENSORS, metadata)
    data = (tmp_path / "file").read_bytes()
    assert data == save({name: tensor.contiguous() for name, tensor in TENSORS.items()}, metadata=metadata)
    assert written.size == len(data)
    assert written.checksum == hashlib.blake2b(data, digest_size=32).hexdigest()


@pytest.mark.parametrize("wrong", [torch.zeros(2, dtype=torch.float64), torch.zeros(2, device="meta")])
def test_what_is_no_float32_on_the_cpu_is_refused_before_a_byte_is_written(tmp_path: Path, wrong: torch.Tensor) -> None:
    with pytest.raises(ContractViolation, match=r"x is .*images are float32 on the CPU"):
        write_tensors(tmp_path / "file", {"x": wrong})
    assert (tmp_path / "file").stat().st_size == 0
