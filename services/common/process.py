"""What the processes of all services share: the boundary around `main`, and the port file."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.common import logs, telemetry
from services.common.errors import TinkermeshError
from services.common.settings import ServiceSettings, from_environment

S = TypeVar("S", bound=ServiceSettings)


def service_main(service: str, kind: type[S], instance: Callable[[S], str], run: Callable[[S], None]) -> int:
    """The exit code: 0 when `run` returns, 1 with the cause in the log otherwise.

    Settings come from TINKERMESH_<SERVICE>_<FIELD>; `instance` names this process in traces.
    """
    log = logging.getLogger(f"services.{service}")
    logs.configure(service)
    try:
        settings = from_environment(kind, service, os.environ)
        logs.configure(service, settings.log_level)
        telemetry.configure(service, instance(settings))
        run(settings)
    except TinkermeshError as error:
        log.critical("the %s ends: %s", service, error.message)
        return 1
    except Exception:  # noqa: BLE001 - the process boundary
        log.critical("the %s ends after an unexpected error", service, exc_info=True)
        return 1
    finally:
        telemetry.shutdown()
    return 0


def write_port(port_file: str, port: int) -> None:
    """Atomically, so that a reader sees the whole number or nothing; "" = nobody reads it."""
    if port_file:
        path = Path(port_file)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        temporary.write_text(f"{port}\n")
        temporary.replace(path)
