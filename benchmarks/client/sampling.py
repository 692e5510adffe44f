"""One sample from the base model, by a session that also trains."""

from __future__ import annotations

from benchmarks.client.gateway import encode
from benchmarks.client.model import Model

PROMPT = list(range(100, 164))


async def sample(model: Model, base_model: str, tokens: int) -> None:
    """Raises Refused."""
    session = {"session_id": model.session_id, "sampling_session_seq_id": 0, "base_model": base_model}
    made = await model.gateway.call("create_sampling_session", session | {"type": "create_sampling_session"})
    body = {
        "sampling_session_id": made["sampling_session_id"],
        "seq_id": 0,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": PROMPT}]},
        "sampling_params": {"max_tokens": tokens, "seed": 1, "stop": [], "temperature": 1.0},
        "type": "sample",
    }
    await model.gateway.result(await model.gateway.submit("asample", encode(body)))
