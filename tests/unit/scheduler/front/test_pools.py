"""Names of base models, and facts that agree."""

from __future__ import annotations

import pytest
from tinkermesh.v1 import scheduler_pb2 as pb
from tinkermesh.v1 import types_pb2 as types

from services.common.errors import InvalidInput
from services.scheduler.pool_facts import (
    check_agreement,
    check_context,
    check_equal,
    check_facts,
    provisional,
    trainable,
)
from services.scheduler.pools import Pools


def _facts(**other: object) -> types.PoolFacts:
    values: dict[str, object] = {
        "pool": "smol",
        "base_model": "org/Smol-135M",
        "aliases": ["/models/smol"],
        "model_fingerprint": "aa",
        "vocab_size": 512,
        "max_context": 2048,
        "dtype": "float32",
        "slots": 8,
        "losses": ["ppo"],
    }
    return types.PoolFacts(**(values | other))  # type: ignore[arg-type]


class Directory:
    async def trainer(self, pool: str) -> pb.RegisterTrainerRequest | None:
        return None

    async def draining(self, pool: str) -> bool:
        return False

    async def replaced(self, pool: str, incarnation: str) -> bool:
        return False

    async def facts(self, pool: str) -> types.PoolFacts:
        return _facts()

    async def pools(self) -> list[types.PoolFacts]:
        return [_facts(), _facts(pool="other", base_model="org/Other", aliases=[])]


@pytest.mark.parametrize("name", ["org/Smol-135M", "/models/smol", "org/Smol-135M:peft:2048"])
async def test_base_model_matches_by_name_path_and_suffix(name: str) -> None:
    assert (await Pools(Directory()).of_base_model(name)).pool == "smol"


@pytest.mark.parametrize("name", ["", "org/smol-135m", "Smol-135M", "org/Smol-135M-Instruct"])
async def test_unknown_base_model_lists_what_there_is(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"base_model.*org/Other, org/Smol-135M"):
        await Pools(Directory()).of_base_model(name)


def test_agreement_names_the_fact_and_both_values_ADD_01() -> None:
    with pytest.raises(InvalidInput, match=r"facts.vocab_size: pool smol has 512, sampler x has 513"):
        check_agreement(_facts(), _facts(vocab_size=513), "sampler x")
    check_agreement(_facts(), _facts(slots=1, max_context=1), "trainer x")
    with pytest.raises(InvalidInput, match=r"facts.slots"):
        check_equal(_facts(), _facts(slots=1), "trainer x")
    with pytest.raises(InvalidInput, match=r"facts.max_context.*2048.*2047"):
        check_context(_facts(), _facts(max_context=2047), "sampler x")
    check_context(_facts(), _facts(max_context=4096), "sampler x")


@pytest.mark.parametrize("field", ["base_model", "model_fingerprint", "vocab_size", "max_context", "dtype"])
def test_registration_without_a_fact_is_refused(field: str) -> None:
    facts = _facts()
    facts.ClearField(field)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=f"facts.{field}"):
        check_facts(facts)


def test_pool_of_samplers_alone_is_not_trainable() -> None:
    assert trainable(_facts())
    assert not trainable(provisional(_facts()))
    assert provisional(_facts()).vocab_size == 512
