"""Loading, pinning, evicting and refusing adapters, on the real engine."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tinkermesh.v1 import sampler_pb2 as pb
from tinkermesh.v1.types_pb2 import AdapterRef

from tests.contract.sampler.client import SamplerClient, SamplerProcess, body, status
from tests.contract.sampler.conftest import MAX_ADAPTERS, AdapterMaker

pytestmark = pytest.mark.engine

PROMPT = [17, 300, 45, 6, 211, 480, 92, 130]


async def test_a_hundred_first_uses_share_one_load_SAMP_01(client: SamplerClient, make_adapter: AdapterMaker) -> None:
    cold = make_adapter("cold@1", seed=30)
    await asyncio.gather(*(client.sample(body(PROMPT, max_tokens=2), cold) for _ in range(100)))
    assert (await client.loaded())["cold@1"].loads == 1
    assert (await client.loaded())["cold@1"].in_use == 0


async def test_the_least_recently_used_idle_adapter_leaves_and_comes_back_with_a_new_id_SNAP_05(
    client: SamplerClient, make_adapter: AdapterMaker
) -> None:
    adapters = [make_adapter(f"lru-{index}@1", seed=40 + index) for index in range(MAX_ADAPTERS + 1)]
    before = await client.greedy(PROMPT, 16, adapters[0])
    first_id = (await client.loaded())["lru-0@1"].engine_id
    for adapter in adapters[1:]:
        await client.sample(body(PROMPT), adapter)
    loaded = await client.loaded()
    assert "lru-0@1" not in loaded and len(loaded) == MAX_ADAPTERS
    after = await client.greedy(PROMPT, 16, adapters[0])
    assert after.tokens == before.tokens
    assert (await client.loaded())["lru-0@1"].engine_id > first_id


async def test_an_adapter_in_use_is_not_evicted_nor_unloaded_SAMP_05(
    client: SamplerClient, make_adapter: AdapterMaker
) -> None:
    pinned = make_adapter("pinned@1", seed=50)
    long = asyncio.create_task(client.sample(body(PROMPT, max_tokens=400), pinned))
    await client.until_running(1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.unload("pinned@1")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    for index in range(MAX_ADAPTERS):
        await client.load(make_adapter(f"push-{index}@1", seed=60 + index))
    assert (await client.loaded())["pinned@1"].in_use == 1
    await long
    assert await client.unload("pinned@1")
    assert not await client.unload("pinned@1")


async def test_loading_without_a_place_is_refused_at_once(client: SamplerClient, make_adapter: AdapterMaker) -> None:
    held = [make_adapter(f"held-{index}@1", seed=70 + index) for index in range(MAX_ADAPTERS)]
    runs = [
        asyncio.create_task(client.sample(body(PROMPT, max_tokens=1500), a, request_id=f"hold.{index}"))
        for index, a in enumerate(held)
    ]
    await client.until_running(MAX_ADAPTERS)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.load(make_adapter("late@1", seed=80))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for index in range(MAX_ADAPTERS):
        await client.stub.Abort(pb.AbortRequest(request_id=f"hold.{index}"), timeout=5)
    await asyncio.gather(*runs, return_exceptions=True)


async def test_running_generations_are_undisturbed_by_the_next_version_SNAP_04(
    client: SamplerClient, make_adapter: AdapterMaker
) -> None:
    first, second = make_adapter("m@1", seed=81), make_adapter("m@2", seed=82)
    alone = await client.greedy(PROMPT, 120, first)
    running = asyncio.create_task(client.greedy(PROMPT, 120, first))
    await client.until_running(1)
    other = await client.greedy(PROMPT, 40, second)
    shared = await running
    assert shared.tokens == alone.tokens
    assert other.tokens != alone.tokens[:40]
    loaded = await client.loaded()
    assert loaded["m@1"].engine_id != loaded["m@2"].engine_id


async def test_cached_prefixes_are_shared_only_within_an_adapter_and_a_salt(
    client: SamplerClient, make_adapter: AdapterMaker
) -> None:
    adapters = [make_adapter(f"prefix-{index}@1", seed=95 + index) for index in range(2)]
    prompt = list(range(100, 200))  # three whole blocks of 32

    async def hits(adapter: AdapterRef | None, salt: str) -> int:
        return (await client.result(body(prompt), adapter, cache_salt=salt)).prompt_cache_hit_tokens

    for adapter in (None, *adapters):
        assert await hits(adapter, "tenant-a") == 0
        assert await hits(adapter, "tenant-a") == 96
        assert await hits(adapter, "tenant-b") == 0


def _missing(_: Path) -> None:
    shutil.rmtree(_)


def _no_config(directory: Path) -> None:
    (directory / "adapter_config.json").unlink()


def _broken_config(directory: Path) -> None:
    (directory / "adapter_config.json").write_text("{")


def _cut_off(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def _garbage(directory: Path) -> None:
    (directory / "adapter_model.safetensors").write_bytes(b"\xff" * 4096)


def _wrong_shape(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors["base_model.model.lm_head.lora_B.weight"] = torch.zeros(100, 8)
    save_file(tensors, file)


def _too_high_rank(directory: Path) -> None:
    config = json.loads((directory / "adapter_config.json").read_text())
    (directory / "adapter_config.json").write_text(json.dumps({**config, "r": 1024}))


def _unknown_module(directory: Path) -> None:
    file = directory / "adapter_model.safetensors"
    save_file({**load_file(file), "base_model.model.model.norm.lora_A.weight": torch.zeros(8, 64)}, file)


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (_missing, grpc.StatusCode.NOT_FOUND),
        (_no_config, grpc.StatusCode.NOT_FOUND),
        (_broken_config, grpc.StatusCode.INVALID_ARGUMENT),
        (_cut_off, grpc.StatusCode.INVALID_ARGUMENT),
        (_garbage, grpc.StatusCode.INVALID_ARGUMENT),
        (_wrong_shape, grpc.StatusCode.INVALID_ARGUMENT),
        (_too_high_rank, grpc.StatusCode.INVALID_ARGUMENT),
        (_unknown_module, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_damaged_adapter_is_refused_and_the_engine_lives(
    client: SamplerClient, sampler: SamplerProcess, make_adapter: AdapterMaker, damage: object, code: grpc.StatusCode
) -> None:
    name = f"damaged{damage.__name__}@1"  # type: ignore[attr-defined]
    adapter = make_adapter(name, seed=85)
    damage(sampler.store / adapter.path)  # type: ignore[operator]
    for attempt in (client.load(adapter), client.sample(body(PROMPT), adapter)):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attempt
        assert caught.value.code() is code, status(caught.value)
        assert name in status(caught.value) or adapter.path.split("/")[-1] in status(caught.value)
    assert name not in await client.loaded()
    assert await client.sample(body(PROMPT))


async def test_an_adapter_whose_directory_vanishes_after_loading_still_serves(
    client: SamplerClient, sampler: SamplerProcess, make_adapter: AdapterMaker
) -> None:
    """vLLM reads it again only if it evicted it, which would kill the engine; it never does."""
    adapter = make_adapter("vanishing@1", seed=86)
    await client.load(adapter)
    before = await client.greedy(PROMPT, 8, adapter)
    (sampler.store / adapter.path / "adapter_model.safetensors").unlink()
    for index in range(MAX_ADAPTERS - 1):
        await client.load(make_adapter(f"beside-{index}@1", seed=87 + index))
    assert (await client.greedy(PROMPT, 8, adapter)).tokens == before.tokens


@pytest.mark.parametrize("path", ["../outside", "/etc", "runs/../../outside", ""])
async def test_a_path_outside_the_store_is_refused_SEC_09(client: SamplerClient, path: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.load(AdapterRef(name="escape@1", path=path))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "store" in status(caught.value)


async def test_a_link_out_of_the_store_is_refused(
    client: SamplerClient, sampler: SamplerProcess, make_adapter: AdapterMaker, tmp_path: Path
) -> None:
    adapter = make_adapter("linked@1", seed=88)
    shutil.copytree(sampler.store / adapter.path, tmp_path / "outside")
    (sampler.store / "way-out").symlink_to(tmp_path / "outside")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.load(AdapterRef(name="link@1", path="way-out"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
async def test_an_adapter_with_broken_numbers_fails_its_own_requests_and_nobody_elses(
    client: SamplerClient, sampler: SamplerProcess, make_adapter: AdapterMaker, value: float
) -> None:
    good, broken = make_adapter(f"good-{value}@1", seed=97), make_adapter(f"broken-{value}@1", seed=98)
    file = sampler.store / broken.path / "adapter_model.safetensors"
    tensors = load_file(file)
    for tensor in tensors.values():
        tensor[0, 0] = value
    save_file(tensors, file)
    before, base = await client.greedy(PROMPT, 100, good), await client.greedy(PROMPT, 100)
    # Side by side, and then on the blocks the broken requests have left behind.
    for _ in range(2):
        bad = [client.sample(body(PROMPT, max_tokens=100), broken) for _ in range(6)]
        *failed, beside, base_beside = await asyncio.gather(
            *bad, client.greedy(PROMPT, 100, good), client.greedy(PROMPT, 100), return_exceptions=True
        )
        assert all("not finite" in str(error) for error in failed)
        assert beside.tokens == before.tokens
        assert base_beside.tokens == base.tokens
    prompts = [[7 + index, *PROMPT] for index in range(20)]
    for prompt, scores in zip(prompts, await asyncio.gather(*(client.score(p) for p in prompts)), strict=True):
        assert np.isfinite(scores[1:]).all(), prompt
