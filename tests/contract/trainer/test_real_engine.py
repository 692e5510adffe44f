"""The whole trainer process with the real engine on a tiny model: train, save, load, export, resume."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from services.common.datum_blocks import Datum
from tests.contract.trainer.harness import Client, connected, stub_settings
from tests.contract.trainer.trainer_process import TrainerProcess
from tests.evidence.table import Claim, Measurements
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

VOCABULARY = 512


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    return build(tmp_path_factory.mktemp("model") / "tiny-qwen3")


@asynccontextmanager
async def trainer(root: Path, model: Path, **changes: object):
    root.mkdir(exist_ok=True)
    settings = stub_settings(
        root,
        model_path=str(model),
        base_model="tinkermesh/tiny-qwen3",
        pool="tiny",
        engine="services.trainer.megatron:build_engine",
        threads=1,
        **changes,
    )
    started = TrainerProcess(settings)
    try:
        async with connected(await started.address()) as client:
            yield client
        assert await started.terminate() == 0
    except BaseException:
        started.kill()
        print(started.log())
        raise


def datum(length: int, seed: int) -> Datum:
    random = np.random.default_rng(seed)
    tokens = random.integers(2, VOCABULARY, length + 1).astype(np.int32)
    return Datum(tokens[:-1], tokens[1:, None], {"weights": np.ones((length, 1), np.float32)})


async def steps(client: Client, slot: int, count: int, *, load: int = 1, seed: int = 0) -> None:
    for step in range(count):
        await client.done(client.units.train([(slot, [datum(9, seed + step), datum(14, 100 + step)])], load=load))
        outcome = await client.done(client.units.optim(slot, load=load))
        assert outcome.slots[0].metrics["grad_norm"] > 0


async def logprobs(client: Client, slot: int, *, load: int = 1) -> np.ndarray:
    outcome, scores = await client.execute(client.units.train([(slot, [datum(12, 777)])], load=load, backward=False))
    assert not outcome.HasField("failure"), outcome
    return np.frombuffer(scores, "<f4")


def gap(left: np.ndarray, right: np.ndarray) -> float:
    return float(np.abs(left - right).max())


def peft_logprobs(model: Path, adapter: Path) -> np.ndarray:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    peft = PeftModel.from_pretrained(base, adapter)
    sample = datum(12, 777)
    with torch.no_grad():
        logits = peft(torch.tensor(sample.tokens[None].astype(np.int64))).logits[0]
    picked = logits.log_softmax(-1).gather(-1, torch.tensor(sample.targets.astype(np.int64)))
    return picked[:, 0].numpy()


async def test_train_save_load_elsewhere_and_export(tmp_path: Path, tiny_model: Path, measured: Measurements):
    """CKPT-05, CKPT-07, CKPT-15, CKPT-16, SNAP-08: one checkpoint, resumed in another slot, process and topology."""
    store = tmp_path / "store"
    async with trainer(tmp_path / "one", tiny_model, store_root=str(store)) as client:
        await client.done(client.units.init(0))
        fresh = await logprobs(client, 0)
        await steps(client, 0, 3)
        trained = await logprobs(client, 0)
        assert np.abs(trained - fresh).max() > 1e-3
        version = await client.published(client.units.save(0, "k3"))
        snapshot = await client.published(client.units.snapshot(0, "1"))
        await client.done(client.units.load(2, version))
        assert (await logprobs(client, 2) == trained).all()
        await steps(client, 0, 1, seed=50)
        await steps(client, 2, 1, seed=50)
        uninterrupted = await logprobs(client, 0)
        assert (await logprobs(client, 2) == uninterrupted).all()
        await client.done(client.units.load(3, version, optimizer=False))
        await steps(client, 3, 1, seed=50)
        resumed, adam_fresh = await logprobs(client, 2), await logprobs(client, 3)
        measured(
            Claim.RESUME,
            "trainer process: logprobs after one more step",
            gap(resumed, uninterrupted),
            within=0.0,
            weights_only=gap(adam_fresh, uninterrupted),
        )

    config = json.loads((store / snapshot / "adapter_config.json").read_text())
    assert {"q_proj", "v_proj", "gate_proj", "down_proj", "lm_head"} <= set(config["target_modules"])
    exported = peft_logprobs(tiny_model, store / snapshot)
    measured(
        Claim.EXPORT,
        "tiny qwen3, a trainer process's snapshot",
        gap(exported, trained),
        within=1e-4,
        one_step_later=gap(exported, uninterrupted),
    )

    crossed = {}
    for sizes in ({"tp": 2}, {"dp": 2}):
        name = next(iter(sizes))
        async with trainer(tmp_path / name, tiny_model, store_root=str(store), **sizes) as client:
            await client.done(client.units.load(1, version))
            np.testing.assert_allclose(await logprobs(client, 1), trained, atol=1e-4)
            await steps(client, 1, 1, seed=50)
            np.testing.assert_allclose(await logprobs(client, 1), uninterrupted, atol=1e-3)
            crossed[name] = await client.published(client.units.save(1, f"from-{name}"))

    async with trainer(tmp_path / "two", tiny_model, store_root=str(store)) as client:
        await client.done(client.units.load(1, version))
        await steps(client, 1, 1, seed=50)
        assert (await logprobs(client, 1) == uninterrupted).all()
        for slot, directory in ((2, crossed["tp"]), (3, crossed["dp"])):
            await client.done(client.units.load(slot, directory))
            np.testing.assert_allclose(await logprobs(client, slot), uninterrupted, atol=1e-3)
