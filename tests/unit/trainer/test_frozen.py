"""The packed products of a frozen weight are those of the plain one."""

from __future__ import annotations

import pytest
import torch

from services.trainer.megatron.frozen import FrozenMatrix


@pytest.mark.parametrize("rows", [1, 16, 300])
@pytest.mark.parametrize(("outputs", "inputs"), [(96, 64), (50, 33)])
def test_both_products_equal_float64s_after_the_plain_copy_is_gone(rows: int, outputs: int, inputs: int) -> None:
    weight, x, dy = torch.randn(outputs, inputs), torch.randn(rows, inputs), torch.randn(rows, outputs)
    frozen = FrozenMatrix(weight)
    frozen.release()
    expected = x.double() @ weight.double().t(), dy.double() @ weight.double()
    for product, reference in zip((frozen.times_transposed(x), frozen.times(dy)), expected, strict=True):
        assert product.shape == reference.shape
        assert (product - reference).norm() <= 1e-6 * reference.norm()


def test_a_weight_that_cannot_be_packed_is_multiplied_as_it_is() -> None:
    weight, x = torch.randn(24, 16).bfloat16(), torch.randn(5, 16).bfloat16()
    frozen = FrozenMatrix(weight)
    frozen.release()
    assert not frozen.packed
    assert torch.equal(frozen.times_transposed(x), x @ weight.t())
    assert torch.equal(frozen.times(x @ weight.t()), x @ weight.t() @ weight)


def test_a_torch_without_the_packing_kernels_multiplies_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    weight, x = torch.randn(24, 16), torch.randn(5, 16)
    frozen = FrozenMatrix(weight)
    assert not frozen.packed
    assert torch.equal(frozen.times_transposed(x), x @ weight.t())
