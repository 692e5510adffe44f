"""What `model` means on the OpenAI routes: a base model, a snapshot, or both with a semicolon between."""

from __future__ import annotations

from services.common.errors import InvalidInput, MissingResource
from services.common.tinker_path import SCHEME
from services.scheduler.sampling.targets import Target, Targets


async def target_of(targets: Targets, tenant_id: str, model: str) -> Target:
    """``<base model>``, ``tinker://<run>/sampler_weights/<name>`` or ``<base model>;<path>``.

    Raises MissingResource (there is no such model), Forbidden (another tenant's snapshot).
    """
    base_model, path = split(model)
    try:
        return await targets.of(tenant_id, base_model, path)
    except (InvalidInput, MissingResource) as error:
        field, colon, rest = error.message.partition(": ")
        text = rest if colon and field in ("base_model", "model_path") else error.message
        raise MissingResource(f"model: {text}") from error


def split(model: str) -> tuple[str, str]:
    """(base model or "", path or "")."""
    if model.startswith(SCHEME):
        return "", model
    base_model, _, path = model.partition(";")
    return base_model, path
