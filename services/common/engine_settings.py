"""The settings trainer and sampler share: their model, their pool, and who is told about them."""

from __future__ import annotations

import socket

from services.common.errors import InvalidInput
from services.common.settings import ServiceSettings


class EngineSettings(ServiceSettings, frozen=True, kw_only=True):
    model_path: str
    """Directory of the base model, Hugging Face layout with safetensors."""
    store_root: str
    """Root of the shared store; the same directory on trainers, schedulers and samplers."""
    listen: str
    advertise: str = ""
    """host:port schedulers reach this process at, port 0 = the bound one; "" = the bound address."""
    schedulers: str = ""
    """Comma-separated gRPC targets that are told about this process; "" = do not register."""
    pool: str = ""
    base_model: str = ""
    aliases: str = ""
    """Comma-separated further names clients may ask for."""
    max_context: int = 0
    """Tokens of one datum, or of prompt and output; 0 = the model's, at most 2048."""
    max_rank: int = 32
    threads: int = 0
    """Compute threads of each process; 0 = torch's choice."""

    @property
    def scheduler_targets(self) -> list[str]:
        return split_names(self.schedulers)

    def check_counts(self, *fields: str) -> None:
        """Raises InvalidInput naming the first of `fields` that is below 1."""
        for field in fields:
            if getattr(self, field) < 1:
                raise InvalidInput(f"{field} must be at least 1, not {getattr(self, field)}")

    def advertised(self, port: int) -> str:
        """`advertise`, or the bound address with a host other machines can use."""
        if self.advertise:
            host, _, given = self.advertise.rpartition(":")
            return f"{host}:{port}" if given == "0" else self.advertise
        host = self.listen.rpartition(":")[0]
        return f"{socket.gethostname() if host in ('0.0.0.0', '[::]', '') else host}:{port}"


def split_names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
