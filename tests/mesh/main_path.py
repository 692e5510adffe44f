"""The main path's requests as the tests of a mesh send them."""

from __future__ import annotations

from collections.abc import Callable

from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.wire_client import Body, Json, WireClient, batch, batch_json, batch_zstd

LORA = {"rank": 8, "seed": 4, "train_unembed": True, "train_mlp": True, "train_attn": True}


async def accepted(client: WireClient, path: str, body: Body) -> Json:
    """The answer's JSON; it must be 200."""
    answer = await client.post(path, body)
    assert answer.status_code == 200, answer.text[:300]
    return dict(answer.json())


async def outcome(client: WireClient, path: str, body: Body) -> Json:
    """What became of a command, in JSON: success or failure."""
    return dict(await client.future((await accepted(client, path, body))["request_id"]))


async def done(client: WireClient, path: str, body: Body) -> Json:
    """The outcome of a command; it must have succeeded."""
    result = await outcome(client, path, body)
    assert "error" not in result, result
    return result


def create_model(session: str, number: int = 0, **lora: object) -> Json:
    return {
        "session_id": session,
        "model_seq_id": number,
        "base_model": BASE_MODEL,
        "lora_config": {**LORA, **lora},
        "type": "create_model",
    }


async def created(client: WireClient, session: str, number: int = 0, **lora: object) -> str:
    """A new model's id."""
    return str((await done(client, "/create_model", create_model(session, number, **lora)))["model_id"])


def adam(model: str, seq_id: int, **parameters: object) -> Json:
    defaults = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
    return {"model_id": model, "seq_id": seq_id, "adam_params": {**defaults, **parameters}, "type": "optim_step"}


async def saved(client: WireClient, model: str, seq_id: int, name: str, route: str = "save_weights") -> str:
    """The path of a new artifact."""
    body = {"model_id": model, "seq_id": seq_id, "path": name, "type": route}
    return str((await done(client, f"/{route}", body))["path"])


async def base_sampler(client: WireClient, session: str, number: int = 0, base_model: str = BASE_MODEL) -> str:
    """A new sampling session's id."""
    return await _sampler(client, session, number, base_model=base_model)


async def snapshot_sampler(client: WireClient, session: str, path: str, number: int = 0) -> str:
    """The same, of saved weights."""
    return await _sampler(client, session, number, model_path=path)


async def _sampler(client: WireClient, session: str, number: int, **weights: str) -> str:
    body = {"session_id": session, "sampling_session_seq_id": number, **weights}
    return str((await accepted(client, "/create_sampling_session", body))["sampling_session_id"])


def sample(
    sampler: str,
    seq_id: int,
    *,
    prompt: tuple[int, ...] = (1, 2, 3),
    n: int = 1,
    tokens: int = 5,
    **parameters: object,
) -> Json:
    defaults = {"max_tokens": tokens, "temperature": 1.0, "top_k": -1, "top_p": 1.0}
    return {
        "sampling_session_id": sampler,
        "seq_id": seq_id,
        "num_samples": n,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": list(prompt)}]},
        "sampling_params": {**defaults, **parameters},
        "type": "sample",
    }


def commands(model: str) -> list[tuple[str, Body, list[Body]]]:
    """(POST, body, changed bodies) of training, in order; the double's numbers depend on nothing else."""
    kinds: dict[str, Callable[[bytes], Body]] = {"protobuf": bytes, "zstd": batch_zstd, "JSON": batch_json}
    made: list[tuple[str, Body, list[Body]]] = []
    for seq, (kind, encoded) in enumerate(kinds.items(), start=1):
        changed = [batch(model, seq, seed=99), batch(model, seq, seed=seq, datums=2)]
        made.append(
            (f"forward_backward {kind}", encoded(batch(model, seq, seed=seq)), [encoded(one) for one in changed])
        )
    names = ("learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip_norm")
    made.append(("optim_step", adam(model, 4), [adam(model, 4, **{name: 0.5}) for name in names]))
    save = {"model_id": model, "seq_id": 5, "path": "end", "overwrite": False, "type": "save_weights"}
    made.append(("save_weights", save, [{**save, "path": "other"}, {**save, "overwrite": True}]))
    return made
