"""The tokens whose logprobs a request names at positions of its prompt, dense or CSR."""

from __future__ import annotations

import numpy as np
from tinkermesh.v1.types_pb2 import CellLayout, SampleBody

from services.common.datum_blocks import Int32
from services.common.errors import InvalidInput
from services.sampler.ports import PromptQuery

FIELD = "target_prompt_logprobs"
_ITEM_BYTES = 4


def asked_cells(body: SampleBody) -> bool:
    return body.HasField("target_prompt_layout")


def prompt_query(body: SampleBody) -> PromptQuery | None:
    """`body` has passed `check_cells`."""
    if not asked_cells(body) and not body.prompt_alt_tokens_k:
        return None
    return PromptQuery(
        rows=_rows(body.target_prompt_layout),
        tokens=np.frombuffer(body.target_prompt_tokens, "<i4"),
        draws=body.prompt_alt_tokens_k,
        temperature=body.temperature,
        seed=body.seed & ((1 << 63) - 1) if body.HasField("seed") else None,
    )


def check_cells(body: SampleBody, vocab_size: int, max_cells: int) -> None:
    """Raises InvalidInput naming the field."""
    rows = max(len(body.prompt_tokens) // _ITEM_BYTES - 1, 0)
    if rows * body.prompt_alt_tokens_k > max_cells:
        raise InvalidInput(f"prompt_alt_tokens_k asks for {rows * body.prompt_alt_tokens_k} draws; at most {max_cells}")
    if not asked_cells(body):
        if body.target_prompt_tokens:
            raise InvalidInput(f"{FIELD} has tokens and no layout")
        return
    if len(body.target_prompt_tokens) > _ITEM_BYTES * max_cells:
        raise InvalidInput(f"{FIELD} names more than {max_cells} cells")
    if body.target_prompt_layout.rows != rows:
        raise InvalidInput(f"{FIELD} has {body.target_prompt_layout.rows} rows; the prompt needs {rows}")
    tokens = np.frombuffer(body.target_prompt_tokens, "<i4")
    if len(tokens) != _cells(body.target_prompt_layout):
        raise InvalidInput(f"{FIELD} has {len(tokens)} values, which its layout does not take")
    if len(tokens) and (tokens.min() < -1 or tokens.max() >= vocab_size):
        raise InvalidInput(f"{FIELD} names a token outside the vocabulary of {vocab_size}")


def _cells(layout: CellLayout) -> int:
    """How many values the layout takes. Raises InvalidInput when the CSR indices contradict each other."""
    if not layout.sparse:
        return layout.rows * layout.width
    counts = _counts(layout)
    if len(counts) != layout.rows or (counts < 0).any() or counts.sum() * _ITEM_BYTES != len(layout.col_indices):
        raise InvalidInput(f"{FIELD}: crow_indices do not fit the {layout.rows} rows and the values")
    return int(counts.sum())


def _counts(layout: CellLayout) -> Int32:
    return np.diff(np.frombuffer(layout.crow_indices, "<i4"))


def _rows(layout: CellLayout) -> Int32:
    """int32 [M]: the row of each value."""
    return np.repeat(np.arange(layout.rows, dtype=np.int32), _counts(layout) if layout.sparse else layout.width)
