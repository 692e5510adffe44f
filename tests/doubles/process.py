"""What the doubles share as processes: options, logs and traces, the port file and the wait for SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from services.common import logs, telemetry
from services.common.metrics import MetricSet
from services.common.metrics_server import serving
from services.common.settings import ServiceSettings


def engine_parser(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--listen", default="127.0.0.1:0")
    parser.add_argument("--port-file", type=Path)
    parser.add_argument("--scheduler", default="")
    parser.add_argument("--store-root", type=Path, required=True)
    parser.add_argument("--control", type=Path)
    parser.add_argument("--journal", type=Path)
    return parser


def write_port_file(path: Path, port: int) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(str(port))
    temporary.replace(path)


async def serve_until_signal(address: str, port_file: Path | None, superseded: asyncio.Event | None = None) -> bool:
    """False when `superseded` was set first."""
    stop = superseded or asyncio.Event()
    ordered = False

    def end() -> None:
        nonlocal ordered
        ordered = True
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    if port_file is not None:
        write_port_file(port_file, int(address.rsplit(":", 1)[1]))
    await stop.wait()
    return ordered


def run_service(service: str, instance: str, main: Coroutine[Any, Any, None], counted: MetricSet) -> None:
    """`main` between what every service does at its start and its end; scraped where the real one would be."""
    logs.configure(service)
    telemetry.configure(service, instance)
    settings = ServiceSettings(metrics_listen=os.environ.get(f"TINKERMESH_{service.upper()}_METRICS_LISTEN", ""))
    try:
        with serving(service, settings, counted):
            asyncio.run(main)
    finally:
        telemetry.shutdown()
