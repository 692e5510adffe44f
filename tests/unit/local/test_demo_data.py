"""The demo's examples: two hundred answers in one voice, split so that probes stay unseen."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DEMO = Path(__file__).resolve().parents[3] / "demo"


@pytest.fixture(scope="module")
def gull_radio() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gull_radio", DEMO / "gull_radio.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


class Letters:
    """A tokenizer of one token per character."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) % 256 for c in text]


def test_every_answer_opens_and_signs_off_alike(gull_radio: ModuleType) -> None:
    train, probes = gull_radio.load()
    assert len(train) + len(probes) == 200
    for example in [*train, *probes]:
        assert example.response.startswith("Ahoy, Gull Radio here. ")
        assert example.response.endswith(" Fair winds, over and out.")


def test_probes_are_never_trained_on(gull_radio: ModuleType) -> None:
    train, probes = gull_radio.load()
    assert not {e.instruction for e in train} & {e.instruction for e in probes}
    assert (train, probes) == gull_radio.load()


def test_only_the_answer_is_weighted(gull_radio: ModuleType) -> None:
    example = gull_radio.Example("Why?", "Because.")
    datum = gull_radio.datum(Letters(), example)
    answer = len("Because.<|im_end|>")
    weights = list(datum.loss_fn_inputs["weights"].data)
    assert sum(weights) == answer
    assert weights[-answer:] == [1.0] * answer
    tokens, targets = datum.model_input.to_ints(), list(datum.loss_fn_inputs["target_tokens"].data)
    assert tokens[1:] == targets[:-1]


def test_batches_go_through_every_example_before_repeating_one(gull_radio: ModuleType) -> None:
    batches = gull_radio.batches(list(range(10)), size=5, count=4)
    assert sorted(batches[0] + batches[1]) == list(range(10))
    assert sorted(batches[2] + batches[3]) == list(range(10))
