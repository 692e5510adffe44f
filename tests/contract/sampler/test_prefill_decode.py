"""Two engines that share a prompt's blocks answer as one engine does, and fail by name when they cannot."""

from __future__ import annotations

import asyncio
import random
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import numpy as np
import pytest
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.adapters import write_adapter
from tests.contract.sampler.client import SamplerClient, status
from tests.contract.sampler.pair import BLOCK, WAIT_SECONDS, Flow, Pair, leg_request, metric, running_pair
from tests.doubles.small_disk import full

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

LENGTHS = [1, 2, *(blocks * BLOCK + more for blocks in (1, 2, 3, 4) for more in (-1, 0, 1))]
LENGTH = 6
RECOMPUTED = "tinkermesh_sampler_kv_recomputed_tokens_total"


@pytest.fixture(scope="module")
def pair(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with running_pair(tiny_model, tmp_path_factory.mktemp("pair")) as running:
        yield running


@pytest.fixture(scope="module")
def adapters(pair: Pair) -> list[AdapterRef]:
    made = []
    for number in (1, 2):
        path = f"runs/p{number}/sampler_weights/_version_x_{number}"
        write_adapter(pair.prefill.model, pair.store / path, seed=number, rank=8)
        made.append(AdapterRef(name=f"p{number}@1", path=path))
    return made


@pytest.fixture
async def flow(pair: Pair) -> AsyncIterator[Flow]:
    processes = (pair.prefill, pair.decode, pair.whole)
    async with (
        SamplerClient(processes[0].address) as prefill,
        SamplerClient(processes[1].address) as decode,
        SamplerClient(processes[2].address) as whole,
    ):
        yield Flow(prefill, decode, whole)
    assert [process.process.poll() for process in processes] == [None] * 3


def prompts(count: int) -> list[list[int]]:
    """Every length in turn; new ones, repeats, and ones that begin as an earlier one does."""
    dice = random.Random(5)
    stems = [dice.choices(range(2, 500), k=max(LENGTHS)) for _ in range(6)]
    made = []
    for number in range(count):
        length = LENGTHS[number % len(LENGTHS)]
        kept = dice.choice([0, length // 2, max(0, length - 1), length])
        made.append(dice.choice(stems)[:kept] + dice.choices(range(2, 500), k=length - kept))
    return made


def differences(split: tuple[list[int], np.ndarray], mixed: tuple[list[int], np.ndarray]) -> float:
    assert split[0] == mixed[0]
    return float(np.abs(split[1] - mixed[1]).max())


async def test_200_prompts_around_block_boundaries_are_as_one_engine_answers_them_TAIL_01_TAIL_04_TAIL_07(
    pair: Pair, flow: Flow, adapters: list[AdapterRef]
) -> None:
    """Greedy tokens and logprobs, with and without adapters, over cold and warm prefixes; D computes no prompt."""
    await flow.load(*adapters)
    choices = [None, *adapters]
    worst = 0.0
    for number, prompt in enumerate(prompts(200)):
        adapter = choices[number % 3]
        split, mixed = await asyncio.gather(flow.split(prompt, LENGTH, adapter), flow.mixed(prompt, LENGTH, adapter))
        worst = max(worst, differences(split, mixed))
    print(f"largest difference of a logprob: {worst:.3g}")
    assert worst < 1e-4
    assert metric(pair.decode, RECOMPUTED) == 0
    assert metric(pair.decode, "tinkermesh_sampler_kv_blocks_loaded_total") > 100


async def test_preempted_decode_legs_take_their_prompt_from_the_tier_again_PDR_17_TAIL_12(
    pair: Pair, flow: Flow, adapters: list[AdapterRef]
) -> None:
    """Ten at once in a cache that holds two or three of them to their end."""
    await flow.load(*adapters)
    crowd = [(prompt, (None, *adapters)[n % 3]) for n, prompt in enumerate(prompts(48)[-10:])]
    before = metric(pair.decode, "vllm:num_preemptions_total")
    split = await asyncio.gather(*(flow.split(prompt, 80, adapter) for prompt, adapter in crowd))
    mixed = [await flow.mixed(prompt, 80, adapter) for prompt, adapter in crowd]
    assert metric(pair.decode, "vllm:num_preemptions_total") > before
    assert max(differences(*both) for both in zip(split, mixed, strict=True)) < 1e-3
    assert metric(pair.decode, RECOMPUTED) == 0


async def failure(work: object) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work  # type: ignore[misc]
    return status(caught.value)


async def test_a_block_with_one_flipped_byte_is_refused_and_gone_PDR_17(pair: Pair, flow: Flow) -> None:
    prompt = random.Random(77).choices(range(2, 500), k=2 * BLOCK + 5)
    before = pair.blocks()
    first, _ = await flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, None)
    made = sorted(pair.blocks() - before)
    assert len(made) == 3
    for block in made:
        data = bytearray(block.read_bytes())
        data[len(data) // 2] ^= 1
        block.write_bytes(data)
        text = await failure(flow.leg(flow.decode, pb.LEG_DECODE, [*prompt, *first.tokens], 4, None))
        assert text.startswith(f"UNAVAILABLE: stage kv transfer: block {block.stem[:16]} is refused: its checksum")
        assert not block.exists()
        await flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, None)
    assert differences(await flow.split(prompt, LENGTH), await flow.mixed(prompt, LENGTH)) < 1e-4
    assert metric(pair.decode, "tinkermesh_sampler_kv_blocks_refused_total") == 3


async def test_a_prompt_nobody_prefilled_is_a_bounded_error_that_names_the_block_PDR_17_TAIL_06(
    pair: Pair, flow: Flow, adapters: list[AdapterRef]
) -> None:
    """Another tenant's salt, another adapter, another prompt: none of them meets these blocks."""
    await flow.load(*adapters)
    prompt = random.Random(78).choices(range(2, 500), k=BLOCK + 3)
    first, _ = await flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, adapters[0], "tenant-a")
    whole = [*prompt, *first.tokens]
    await flow.leg(flow.decode, pb.LEG_DECODE, whole, 2, adapters[0], "tenant-a")
    started = time.monotonic()
    texts = await asyncio.gather(
        failure(flow.leg(flow.decode, pb.LEG_DECODE, whole, 2, adapters[0], "tenant-b")),
        failure(flow.leg(flow.decode, pb.LEG_DECODE, whole, 2, adapters[1], "tenant-a")),
        failure(flow.leg(flow.decode, pb.LEG_DECODE, whole, 2, None, "tenant-a")),
        failure(flow.leg(flow.decode, pb.LEG_DECODE, whole[1:], 2, adapters[0], "tenant-a")),
    )
    assert time.monotonic() - started < WAIT_SECONDS + 20
    assert [text.startswith("UNAVAILABLE: stage kv transfer: block ") for text in texts] == [True] * 4, texts
    assert all("(1 of 2 of the prompt) is not in the tier" in text for text in texts)


async def test_a_catalog_that_is_away_fails_both_legs_and_comes_back_by_itself_PDR_18_GAP_15(
    pair: Pair, flow: Flow
) -> None:
    """Redis dies, and starts again without anything it knew."""
    prompt = random.Random(79).choices(range(2, 500), k=BLOCK + 7)
    first, _ = await flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, None)
    whole = [*prompt, *first.tokens]
    pair.redis.kill()
    legs = (
        flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, None),
        flow.leg(flow.decode, pb.LEG_DECODE, whole, 2, None),
    )
    texts = await asyncio.gather(*(failure(leg) for leg in legs))
    assert [text.startswith("UNAVAILABLE: stage kv catalog: Redis does not answer") for text in texts] == [True] * 2
    shutil.rmtree(pair.redis.directory)
    pair.redis.directory.mkdir()
    pair.redis.start()
    await flow.leg(flow.decode, pb.LEG_DECODE, whole, 2, None)  # its wait is longer than a republication takes
    assert differences(await flow.split(prompt, LENGTH), await flow.mixed(prompt, LENGTH)) < 1e-4


async def test_a_full_disk_fails_the_prefill_leg_and_nothing_else(pair: Pair, flow: Flow) -> None:
    prompt = random.Random(80).choices(range(2, 500), k=2 * BLOCK + 7)
    with full(pair.tier):
        text = await failure(flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, None))
        assert "UNAVAILABLE: stage kv save: block " in text
        assert "the tier's disk is full" in text
        assert (await flow.prefill.greedy(prompt, 3)).tokens == (await flow.mixed(prompt, 3))[0]
    assert list(pair.tier.rglob("*.tmp")) == []
    assert differences(await flow.split(prompt, LENGTH), await flow.mixed(prompt, LENGTH)) < 1e-4


async def test_a_streamed_prefill_leg_fails_behind_its_token_when_its_blocks_are_not_saved(
    pair: Pair, flow: Flow
) -> None:
    prompt = random.Random(84).choices(range(2, 500), k=2 * BLOCK + 7)
    asked = pb.SampleStreamRequest(sample=leg_request(pb.LEG_PREFILL, prompt, 1))
    told: list[pb.SampleChunk] = []

    async def listen() -> None:
        async for chunk in flow.prefill.stub.SampleStream(asked, timeout=60):
            told.append(chunk)

    with full(pair.tier):
        assert "the tier's disk is full" in await failure(listen())
    assert [chunk.finish for chunk in told] == ["length"]


async def test_an_adapter_deleted_under_running_engines_is_a_user_error_and_they_live_on(
    pair: Pair, flow: Flow
) -> None:
    path = "runs/gone/sampler_weights/_version_x_9"
    write_adapter(pair.prefill.model, pair.store / path, seed=9, rank=8)
    adapter = AdapterRef(name="gone@1", path=path)
    await flow.load(adapter)
    prompt = random.Random(81).choices(range(2, 500), k=BLOCK + 9)
    assert differences(await flow.split(prompt, LENGTH, adapter), await flow.mixed(prompt, LENGTH, adapter)) < 1e-4
    shutil.rmtree(pair.store / path)
    for client, leg in ((flow.prefill, pb.LEG_PREFILL), (flow.decode, pb.LEG_DECODE)):
        assert (await failure(flow.leg(client, leg, prompt, 1, adapter))).startswith("NOT_FOUND: adapter gone@1 has no")
    assert differences(await flow.split(prompt, LENGTH), await flow.mixed(prompt, LENGTH)) < 1e-4


async def test_an_adapter_that_is_loaded_again_meets_its_own_blocks_and_other_bytes_under_its_name_do_not(
    pair: Pair, flow: Flow
) -> None:
    """The engine's number of it is another then; a name that is bound to other bytes never meets the first one's."""
    path = "runs/twice/sampler_weights/_version_x_8"
    adapter = AdapterRef(name="twice@1", path=path)
    write_adapter(pair.prefill.model, pair.store / path, seed=18, rank=8)
    prompt = random.Random(83).choices(range(2, 500), k=2 * BLOCK + 3)
    await flow.load(adapter)
    first = await flow.split(prompt, LENGTH, adapter)
    before = pair.blocks()
    for client in (flow.prefill, flow.decode):
        assert await client.unload(adapter.name)
    await flow.load(adapter)
    again = await flow.split(prompt, LENGTH, adapter)
    assert differences(again, first) == 0
    assert pair.blocks() == before
    for client in (flow.prefill, flow.decode):
        assert await client.unload(adapter.name)
    shutil.rmtree(pair.store / path)
    write_adapter(pair.prefill.model, pair.store / path, seed=19, rank=8)
    await flow.load(adapter)
    other, mixed = await flow.split(prompt, LENGTH, adapter), await flow.mixed(prompt, LENGTH, adapter)
    assert differences(other, mixed) < 1e-4
    assert np.abs(other[1] - first[1]).max() > 1e-3
    assert len(pair.blocks() - before) == 3


async def test_operators_see_the_tier_and_drop_blocks_of_it(pair: Pair, flow: Flow) -> None:
    prompt = random.Random(82).choices(range(2, 500), k=2 * BLOCK + 9)
    before = pair.blocks()
    first, _ = await flow.leg(flow.prefill, pb.LEG_PREFILL, prompt, 1, None)
    made = sorted(block.stem for block in pair.blocks() - before)
    status_here = await flow.decode.stub.TierStatus(pb.TierStatusRequest(), timeout=30)
    assert status_here.blocks == status_here.catalogued == len(pair.blocks())
    assert status_here.kv == (await flow.prefill.stub.Describe(pb.DescribeSamplerRequest(), timeout=30)).kv
    assert status_here.kv.tier
    reply = await flow.prefill.stub.InvalidateBlocks(pb.InvalidateBlocksRequest(keys=made), timeout=30)
    assert reply.dropped == len(made) == 3
    assert pair.blocks() == before
    text = await failure(flow.leg(flow.decode, pb.LEG_DECODE, [*prompt, *first.tokens], 4, None))
    assert "is not in the tier" in text
    text = await failure(flow.whole.stub.TierStatus(pb.TierStatusRequest(), timeout=30))
    assert text.startswith("UNIMPLEMENTED")
