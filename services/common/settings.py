"""Settings of a service: one frozen msgspec Struct, filled from the environment.

Field ``long_poll_seconds`` of the gateway is read from ``TINKERMESH_GATEWAY_LONG_POLL_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from services.common.errors import InvalidInput

S = TypeVar("S", bound=msgspec.Struct)


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every service may be told."""

    port_file: str = ""
    """Where the bound port is written once the service is ready; "" = nowhere."""
    log_level: str = "INFO"
    metrics_listen: str = ""
    """host:port of the Prometheus endpoint, port 0 = any; "" = none."""
    metrics_port_file: str = ""
    """Where its bound port is written; "" = nowhere."""


def from_environment(kind: type[S], service: str, environ: Mapping[str, str]) -> S:
    """Raises InvalidInput naming the variable whose value does not fit its field."""
    prefix = f"TINKERMESH_{service.upper()}_"
    names = {f"{prefix}{field.name.upper()}": field.name for field in msgspec.structs.fields(kind)}
    values = {field: environ[name] for name, field in names.items() if environ.get(name, "") != ""}
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"settings of {service}: {error} (variables are {prefix}<FIELD>)") from error


def to_environment(settings: msgspec.Struct, service: str) -> dict[str, str]:
    """The variables that make `from_environment` return equal settings; None fields are left out."""
    prefix = f"TINKERMESH_{service.upper()}_"
    return {
        f"{prefix}{name.upper()}": str(value)
        for name, value in msgspec.structs.asdict(settings).items()
        if value is not None
    }
