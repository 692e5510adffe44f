"""forward and forward_backward results on the wire."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tinkermesh.v1 import types_pb2 as types
from tinkermesh.wire.v1 import wire_pb2 as wire

from services.common.errors import ContractViolation

log = logging.getLogger(__name__)

OUTPUT_TYPE = "ArrayRecord"
_LOSS = "loss:sum"


class _Run(NamedTuple):
    """Neighbouring datums of one trailing shape, () or (K,): one rectangular record."""

    first: int
    datums: int
    trailing: tuple[int, ...]


def batch_protobuf(result: types.BatchResult) -> bytes:
    """A serialized ForwardBackwardOutput, datums in the request's own order."""
    offsets = _byte_offsets(result)
    output = wire.ForwardBackwardOutput(loss_fn_output_type=OUTPUT_TYPE, metrics=_metrics(result))
    for run in _runs(result):
        output.loss_fn_outputs.append(_record(result, run, offsets))
    return output.SerializeToString(deterministic=True)  # its maps too: every gateway answers the same bytes


def batch_json(result: types.BatchResult) -> dict[str, Any]:
    """The same numbers as JSON."""
    offsets = _byte_offsets(result)
    outputs = [
        {
            "logprobs": {"data": _floats(result, start, end), "dtype": "float32", "shape": [length, *trailing]},
            _LOSS: {"data": [loss], "dtype": "float32", "shape": [1]},
        }
        for start, end, length, trailing, loss in zip(
            offsets[:-1].tolist(),
            offsets[1:].tolist(),
            result.lengths,
            _trailing_shapes(result),
            result.datum_losses,
            strict=True,
        )
    ]
    return {"loss_fn_output_type": OUTPUT_TYPE, "loss_fn_outputs": outputs, "metrics": _metrics(result)}


def _byte_offsets(result: types.BatchResult) -> npt.NDArray[np.int64]:
    """int64 [datums + 1]. Raises ContractViolation when the logprobs are not what the lengths say."""
    sizes = np.multiply(np.array(result.lengths, "<i8"), np.array(result.widths, "<i8")) * 4
    offsets: npt.NDArray[np.int64] = np.concatenate((np.zeros(1, "<i8"), np.cumsum(sizes, dtype="<i8")))
    if int(offsets[-1]) != len(result.logprobs) or len(result.datum_losses) != len(result.lengths):
        raise ContractViolation("a batch result's logprobs do not match its lengths")
    return offsets


def _runs(result: types.BatchResult) -> Iterator[_Run]:
    first = 0
    for trailing, group in itertools.groupby(_trailing_shapes(result)):
        count = len(list(group))
        yield _Run(first, count, trailing)
        first += count


def _trailing_shapes(result: types.BatchResult) -> list[tuple[int, ...]]:
    """What follows the positions in each datum's logprobs: as its targets came."""
    columns = set(result.columns)
    return [(width,) if width > 1 or index in columns else () for index, width in enumerate(result.widths)]


def _record(result: types.BatchResult, run: _Run, offsets: npt.NDArray[np.int64]) -> wire.ArrayRecord:
    last = run.first + run.datums
    own = offsets[run.first : last + 1]
    logprobs = wire.BatchedTensor(
        data=result.logprobs[int(own[0]) : int(own[-1])],
        offsets=(own - own[0]).astype("<i8").tobytes(),
        dtype=wire.DTYPE_FLOAT32,
        trailing_shape=run.trailing,
    )
    losses = np.array(result.datum_losses[run.first : last], "<f4")
    loss = wire.BatchedTensor(
        data=losses.tobytes(),
        offsets=(np.arange(run.datums + 1, dtype="<i8") * 4).tobytes(),
        dtype=wire.DTYPE_FLOAT32,
    )
    return wire.ArrayRecord(type_tag=OUTPUT_TYPE, fields={"logprobs": logprobs, _LOSS: loss}, num_datums=run.datums)


def _metrics(result: types.BatchResult) -> dict[str, float]:
    """Names with exactly one colon: the SDK's chunk combiner fails on any other."""
    metrics = {name: value for name, value in result.metrics.items() if name.count(":") == 1}
    if len(metrics) != len(result.metrics):
        log.warning(
            "metrics without exactly one colon were left out: %s", sorted(result.metrics.keys() - metrics.keys())
        )
    metrics[_LOSS] = result.loss_sum
    return dict(sorted(metrics.items()))


def _floats(result: types.BatchResult, start: int, end: int) -> list[float]:
    values: list[float] = np.frombuffer(result.logprobs, "<f4", (end - start) // 4, start).tolist()
    return values
