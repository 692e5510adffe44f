"""What every run of the SDK scenario must show, whatever SDK and whatever engines."""

from __future__ import annotations

import math
from typing import Any


def check_scenario(report: dict[str, Any], *, vocab: int, tolerance: float) -> None:
    """`tolerance` bounds |difference| of logprobs that must be equal (0 = bitwise)."""
    _check_training(report, vocab)
    _check_sampling(report, vocab, tolerance)
    _check_resume(report["resumed"], tolerance)


def difference(left: list[list[float]], right: list[list[float]]) -> float:
    pairs = [(a, b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)]
    return max(abs(a - b) for a, b in pairs)


def _check_training(report: dict[str, Any], vocab: int) -> None:
    assert report["info"]["model_id"].endswith(":train:0")
    assert report["info"]["rank"] == 8
    assert [len(one) for one in report["forward"]] == [9, 9, 9]
    chunked = report["chunked"]
    assert chunked["datums"] == 1026
    assert math.isclose(chunked["sum"], sum(chunked["losses"]), rel_tol=1e-5)
    for done in report["rounds"]:
        assert math.isclose(done["sum"], -sum(x for one in done["logprobs"] for x in one), rel_tol=1e-5)
        assert done["step"]["grad_norm"] > 0
    assert report["saves"]["state"].endswith("/weights/state-1")
    assert report["saves"]["named"].endswith("/sampler_weights/sampler-1")
    assert report["final"].endswith("/weights/final")


def _check_sampling(report: dict[str, Any], vocab: int, tolerance: float) -> None:
    sampling = report["sampling"]
    for answer in sampling.values():
        assert len(answer["tokens"]) == 4
        assert all(1 <= len(tokens) <= 8 and max(tokens) < vocab for tokens in answer["tokens"])
        assert [len(x) for x in answer["logprobs"]] == [len(x) for x in answer["tokens"]]
        assert answer["prompt"][0] is None
    assert len({tuple(tokens) for tokens in sampling["named"]["tokens"]}) > 1
    assert sampling["named"]["tokens"] == sampling["unnamed"]["tokens"]
    trainer = [report["saves"]["trainer_logprobs"]]
    assert difference([sampling["named"]["prompt"][1:]], trainer) <= tolerance
    assert difference([sampling["unnamed"]["prompt"][1:]], trainer) <= tolerance
    assert difference([sampling["base"]["prompt"][1:]], trainer) > 10 * tolerance


def _check_resume(resumed: dict[str, Any], tolerance: float) -> None:
    """With the optimizer's state the continued run is the original; weights alone are not."""
    assert difference(resumed["with_optimizer"], resumed["original"]) <= tolerance
    assert difference(resumed["weights_only"], resumed["original"]) > tolerance
