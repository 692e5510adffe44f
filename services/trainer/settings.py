"""Settings of the trainer, read from TINKERMESH_TRAINER_<FIELD>."""

from __future__ import annotations

from services.common.cells import FIRST_CELL, is_cell_name
from services.common.engine_settings import EngineSettings
from services.common.errors import InvalidInput

MEBIBYTE = 1 << 20


class Settings(EngineSettings, frozen=True, kw_only=True):
    listen: str = "127.0.0.1:7002"
    trainer_id: str = ""
    """Stable over restarts; "" = trainer-<pool>, with -<cell> unless that is the first one."""
    cell: str = FIRST_CELL
    """Which of the pool's trainers this is, stable over restarts: models live on one of them. Several of one cell stand
    by for each other."""
    slots: int = 8
    alpha: float = 32.0
    unit_token_budget: int = 4096
    micro_batch_tokens: int = 2048
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
    memory_limit_mib: int = 0
    """What one pass may take on each rank, beyond model and slots; 0 = nine tenths of what is free after the start,
    less what all slots take when they are full."""
    train_experts: bool = False
    """Whether models on a mixture of experts may train the experts (train_mlp). Such adapters are saved, resumed and
    downloaded, but samplers do not serve them. Of no effect on other models."""
    engine: str = "services.trainer.megatron:build_engine"
    """module:function called with an EngineSpec on every rank."""
    rendezvous: str = ""
    """host:port of rank 0, set for the ranks it starts."""
    rank: int = 0

    @property
    def world(self) -> int:
        return self.tp * self.dp

    def check(self) -> Settings:
        """Raises InvalidInput naming the field that cannot be honoured."""
        for field in ("pp", "ep", "cp"):
            if getattr(self, field) != 1:
                raise InvalidInput(f"{field}={getattr(self, field)} is not supported yet; use tp and dp")
        self.check_counts(
            "slots", "max_rank", "unit_token_budget", "micro_batch_tokens", "tp", "dp", "max_pending_artifacts"
        )
        if not is_cell_name(self.cell):
            raise InvalidInput(f"cell={self.cell!r} is not the name of a cell (a-z 0-9 -, at most 63)")
        if self.memory_limit_mib < 0:
            raise InvalidInput(f"memory_limit_mib must be at least 0, not {self.memory_limit_mib}")
        if not self.alpha > 0:
            raise InvalidInput(f"alpha must be above 0, not {self.alpha}")
        return self
