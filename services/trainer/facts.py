"""What this trainer offers its pool: read from the model's files and the settings."""

from __future__ import annotations

from tinkermesh.v1.types_pb2 import PoolFacts

from services.common.model_facts import model_facts
from services.trainer.losses import LOSSES
from services.trainer.megatron.mixture import MIXTURE
from services.trainer.settings import Settings

DTYPE = "float32"


def pool_facts(settings: Settings) -> PoolFacts:
    """Raises InvalidInput when the model's directory or a name does not fit."""
    facts = model_facts(settings, DTYPE)
    facts.slots = settings.slots
    facts.max_rank = settings.max_rank
    facts.alpha = settings.alpha
    facts.train_attn = facts.train_unembed = True
    facts.train_mlp = settings.train_experts or facts.arch != MIXTURE
    facts.losses.extend(LOSSES)
    facts.unit_token_budget = settings.unit_token_budget
    return facts
