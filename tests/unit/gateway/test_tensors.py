"""Dense and CSR tensors of the wire."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import InvalidInput
from services.gateway.wire.tensors import Room, SparseBound, array_from_list, dense_from_bytes, densify


def bound(length: int, width: int, room: int = 1000) -> SparseBound:
    return SparseBound(length, width, Room(room))


def i64(*values: int) -> np.ndarray:
    return np.array(values, "<i8")


def test_dense_is_a_view_of_the_bytes() -> None:
    data = np.arange(4, dtype="<f4").tobytes()
    tensor = dense_from_bytes(data, "float32", [4])
    assert tensor.data is data
    assert tensor.shape == (4,)


def test_shape_is_taken_from_the_values_when_absent() -> None:
    assert dense_from_bytes(bytes(24), "int64", []).shape == (3,)


@st.composite
def dense_matrices(draw: st.DrawFn) -> np.ndarray:
    rows, columns = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    values = draw(st.lists(st.sampled_from([0, 0, 0, 1, 7]), min_size=rows * columns, max_size=rows * columns))
    return np.array(values, "<i8").reshape(rows, columns)


@given(dense_matrices())
def test_csr_round_trip_for_every_sparsity(dense: np.ndarray) -> None:
    rows, cols = np.nonzero(dense)
    crow = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=dense.shape[0])))).astype("<i8")
    tensor = densify(dense[rows, cols], crow, cols.astype("<i8"), "int64", dense.shape, bound(dense.shape[0], 8))
    assert tensor.values.reshape(dense.shape).tolist() == dense.tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: densify(i64(1), i64(0, 1), i64(-1), "int64", [3], bound(3, 1)),
        lambda: densify(i64(1), i64(0, 1), i64(3), "int64", [3], bound(3, 1)),
        lambda: densify(i64(1, 1), i64(0, 2), i64(2, 2), "int64", [3], bound(3, 1)),
        lambda: densify(i64(1, 1), i64(0, 3), i64(0, 1), "int64", [3], bound(3, 1)),
        lambda: densify(i64(1), i64(0, 1), i64(0), "int64", [10**12], bound(3, 1)),
        lambda: densify(i64(1), i64(0, 1), i64(0), "int64", [3, 10**12], bound(3, 64)),
        lambda: densify(i64(1, 2), i64(0, 2**63 - 1, -2, 2), i64(0, 1), "int64", [3, 2], bound(3, 2)),
        lambda: densify(i64(1), i64(), i64(0), "int64", [3], bound(3, 1)),
        lambda: densify(i64(), i64(0), i64(), "int64", [], bound(3, 1)),
    ],
)
def test_bad_csr_is_refused_before_anything_is_allocated_VAL_13(call: Callable[[], object]) -> None:
    began = time.perf_counter()
    with pytest.raises(InvalidInput):
        call()
    assert time.perf_counter() - began < 0.05


def test_columns_may_start_again_in_a_new_row() -> None:
    tensor = densify(i64(1, 2, 3), i64(0, 1, 1, 3), i64(1, 0, 1), "int64", [3, 2], bound(3, 2))
    assert tensor.values.tolist() == [0, 1, 0, 0, 2, 3]


def test_all_sparse_tensors_of_a_request_share_one_room_VAL_13() -> None:
    """Otherwise many tiny ones, each as large as its datum when dense, are a bomb."""
    room = Room(10)
    empty = i64(0, 0, 0)
    densify(i64(), empty, i64(), "int64", [2, 3], SparseBound(2, 8, room))
    with pytest.raises(InvalidInput, match="too large when dense"):
        densify(i64(), empty, i64(), "int64", [2, 3], SparseBound(2, 8, room))


@pytest.mark.parametrize(("values", "dtype"), [([1, 2.0], "int64"), ([2**63], "int64"), ([2**31], "int32")])
def test_numbers_that_do_not_fit_are_refused_VAL_06(values: list[float], dtype: str) -> None:
    with pytest.raises(InvalidInput):
        array_from_list(values, dtype)


def test_float32_overflow_becomes_inf_to_be_refused_with_its_place_VAL_08() -> None:
    assert np.isinf(array_from_list([1e39], "float32")).all()
    with pytest.raises(InvalidInput):
        array_from_list([10**400], "float32")
