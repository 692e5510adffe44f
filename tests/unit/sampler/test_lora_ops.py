from __future__ import annotations

import torch

from services.sampler.engine.lora_ops import GroupedOps
from services.sampler.engine.zero_adapter import BASE_ENGINE_ID


class FakeWrapper:
    """What GroupedOps reads of vLLM's wrapper."""

    def __init__(self, tokens: list[int], samples: list[int]) -> None:
        self.token_lora_indices = torch.tensor(tokens)
        self.sampler_indices = torch.tensor(samples)
        self.updates = 0

    def update_metadata(self, *_: object, **__: object) -> None:
        self.updates += 1


def naive(y: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """One row at a time; rows without a slot stay."""
    out = y.clone()
    for row, slot in enumerate(slots):
        if slot >= 0:
            out[row] += b[slot, 0] @ (a[slot, 0] @ x[row])
    return out


def test_grouped_products_equal_one_row_at_a_time_and_skip_the_base() -> None:
    generator = torch.Generator().manual_seed(0)
    slots = [2, 2, 0, 1, -1, 2, 1, 0]
    a = torch.randn(3, 1, 4, 6, generator=generator)
    bs = [torch.randn(3, 1, width, 4, generator=generator) for width in (5, 3)]
    x = torch.randn(len(slots), 6, generator=generator)
    y = torch.randn(len(slots), 8, generator=generator)
    wrapper = FakeWrapper(slots, slots)
    ops = GroupedOps(wrapper)
    ops.install()
    wrapper.update_metadata(None, [BASE_ENGINE_ID, 7, 9], 4, 100)  # slot 0 is the base model's
    assert wrapper.updates == 1
    expected_slots = [-1 if slot == 0 else slot for slot in slots]
    expected = torch.cat(
        [naive(y[:, :5], x, a, bs[0], expected_slots), naive(y[:, 5:], x, a, bs[1], expected_slots)], 1
    )
    got = y.clone()
    wrapper.add_lora_linear(got, x, [a, a], bs, 1.0, [5, 3])  # type: ignore[attr-defined]
    assert torch.allclose(got, expected, atol=1e-5)
    assert not torch.allclose(got, y)
    logits = y.clone()
    wrapper.add_lora_logits(logits, x, a, bs[0], 1.0)  # type: ignore[attr-defined]  # narrower than y: padding stays
    assert torch.allclose(logits[:, :5], naive(y[:, :5], x, a, bs[0], expected_slots), atol=1e-5)
    assert torch.equal(logits[:, 5:], y[:, 5:])
