"""Settings of the trainer, read from TINKERMESH_TRAINER_<FIELD>."""

from __future__ import annotations

import msgspec

from services.common.errors import InvalidInput

MEBIBYTE = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    model_path: str
    """Directory of the base model, Hugging Face layout with safetensors."""
    store_root: str
    """Root of the shared store; the same directory on trainers, schedulers and samplers."""
    listen: str = "127.0.0.1:7002"
    advertise: str = ""
    """host:port schedulers reach this trainer at; "" = the bound address."""
    port_file: str = ""
    trainer_id: str = ""
    """Stable over restarts; "" = trainer-<pool>."""
    schedulers: str = ""
    """Comma-separated gRPC targets, tried in turn; "" = do not register."""
    pool: str = ""
    base_model: str = ""
    aliases: str = ""
    """Comma-separated further names clients may ask for."""
    slots: int = 8
    max_rank: int = 32
    alpha: float = 32.0
    max_context: int = 0
    """Tokens of one datum; 0 = the model's, at most 2048."""
    unit_token_budget: int = 4096
    micro_batch_tokens: int = 2048
    threads: int = 0
    """Compute threads of each rank; 0 = torch's choice."""
    tp: int = 1
    dp: int = 1
    pp: int = 1
    ep: int = 1
    cp: int = 1
    max_unit_mib: int = 512
    max_pending_artifacts: int = 16
    """Captured but not yet published saves kept in memory; more wait."""
    version_grace_seconds: float = 600.0
    """How long a superseded version stays for readers that pinned it."""
    drain_seconds: float = 60.0
    """How long a stop waits for captured saves to be published."""
    engine: str = "services.trainer.megatron:build_engine"
    """module:function called with an EngineSpec on every rank."""
    rendezvous: str = ""
    """host:port of rank 0, set for the ranks it starts."""
    rank: int = 0
    log_level: str = "INFO"

    @property
    def world(self) -> int:
        return self.tp * self.dp

    @property
    def scheduler_targets(self) -> list[str]:
        return split_names(self.schedulers)

    def check(self) -> Settings:
        """Raises InvalidInput naming the field that cannot be honoured."""
        for field in ("pp", "ep", "cp"):
            if getattr(self, field) != 1:
                raise InvalidInput(f"{field}={getattr(self, field)} is not supported yet; use tp and dp")
        for field in (
            "slots",
            "max_rank",
            "unit_token_budget",
            "micro_batch_tokens",
            "tp",
            "dp",
            "max_pending_artifacts",
        ):
            if getattr(self, field) < 1:
                raise InvalidInput(f"{field} must be at least 1, not {getattr(self, field)}")
        if not self.alpha > 0:
            raise InvalidInput(f"alpha must be above 0, not {self.alpha}")
        return self


def split_names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
