"""Micro-batches and data-parallel shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from services.common.errors import ContractViolation
from services.trainer.engine import SlotDatum
from services.trainer.megatron.logprob import Scores
from services.trainer.megatron.packing import MicroBatch, Work, pack, share_for_rank
from services.trainer.megatron.results import ResultBoard
from tests.unit.trainer.rig import supervised

CPU = torch.device("cpu")


def _works(*slots_and_lengths: tuple[int, int]) -> list[Work]:
    return [
        Work(i, SlotDatum(slot, supervised(i, length, width=1 + i % 2)))
        for i, (slot, length) in enumerate(slots_and_lengths)
    ]


def test_micro_batches_keep_order_and_budget() -> None:
    batches = list(pack(_works((0, 5), (0, 5), (1, 11), (2, 3), (2, 3)), 10, CPU))
    assert [batch.lengths for batch in batches] == [(5, 5), (11,), (3, 3)]
    assert [work.index for batch in batches for work in batch.works] == [0, 1, 2, 3, 4]


def test_slot_spans_cover_contiguous_tokens() -> None:
    (batch,) = pack(_works((0, 5), (0, 2), (3, 4)), 100, CPU)
    assert list(batch.slot_spans()) == [(0, 0, 7), (3, 7, 11)]


def test_narrower_datums_are_masked_beyond_their_width() -> None:
    works = _works((0, 2), (0, 3))
    (batch,) = pack(works, 100, CPU)
    assert batch.valid.tolist() == [[True, False]] * 2 + [[True, True]] * 3
    assert np.array_equal(batch.targets[:2, :1].numpy(), works[0].item.datum.targets)
    assert not batch.fields["weights"][:2, 1].any()


@pytest.mark.parametrize(("count", "dp"), [(6, 4), (1, 2), (4, 2), (5, 3)])
def test_shares_are_equal_and_copies_do_not_count_LOSS_10(count: int, dp: int) -> None:
    works = _works(*[(0, 3 + i) for i in range(count)])
    shares = [share_for_rank(works, rank, dp) for rank in range(dp)]
    assert len({len(share) for share in shares}) == 1
    flat = [work for share in shares for work in share]
    assert [work.index for work in flat if work.counts] == list(range(count))
    copies = [work for work in flat if not work.counts]
    assert len(copies) == -count % dp
    assert all(work.item is works[-1].item for work in copies)
    for share in shares:
        for batch in pack(share, 1000, CPU):
            for work, start, end in batch.spans():
                assert bool(batch.valid[start:end].any()) == work.counts


def test_board_refuses_missing_and_repeated_datums_LOSS_11() -> None:
    works = _works((0, 3), (0, 4))

    def written(*batches: MicroBatch) -> ResultBoard:
        board = ResultBoard(works)
        for batch in batches:
            zeros = torch.zeros(batch.targets.shape)
            board.write(batch, Scores(zeros, zeros, None))
        return board

    class OneRank:
        dp_size = 1

    one, two = pack(works, 3, CPU)
    written(one, two).exchange(OneRank())  # type: ignore[arg-type]
    for wrong in (written(one), written(one, two, two)):
        with pytest.raises(ContractViolation):
            wrong.exchange(OneRank())  # type: ignore[arg-type]
