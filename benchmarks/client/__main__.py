"""``python -m benchmarks.client BASE_URL KEY...``: a JSON command per line in, a JSON answer per line out."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from typing import Any

import msgspec
import uvloop

from benchmarks.client.driver import Driver


async def _serve(driver: Driver) -> None:
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        command = msgspec.json.decode(line)
        answer = await _answer(driver, command["do"], command["with"])
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
    await driver.close()


async def _answer(driver: Driver, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"result": await getattr(driver, name)(**arguments)}
    except Exception as error:  # noqa: BLE001 - process boundary: the parent raises it
        traceback.print_exc()
        return {"error": f"{name}: {error!r}"}


if __name__ == "__main__":
    gc.freeze()
    uvloop.run(_serve(Driver(sys.argv[1], sys.argv[2:])))
