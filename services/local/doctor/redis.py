"""Redis, as a scheduler of this release finds it: asked by a scheduler's own process, which knows what it needs."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec

from services.common.findings import Finding, error, note
from services.local.doctor.target import DURABILITY, REDIS_URL

SECONDS = 60.0
COMMAND = (sys.executable, "-m", "services.scheduler.doctor")


def redis(url: str, durability: str) -> list[Finding]:
    """`durability`: "" = the variable's, else strict."""
    environment = {**os.environ, REDIS_URL: url, **({DURABILITY: durability} if durability else {})}
    try:
        done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)
        return msgspec.json.decode(done.stdout, type=list[Finding])
    except subprocess.TimeoutExpired:
        return [error("redis", f"no answer within {SECONDS:.0f} s", "is it overloaded, or its disk stuck? See its log")]
    except msgspec.DecodeError:
        if "No module named 'redis'" in done.stderr:
            return [
                note("redis", "not looked at: this installation has no Redis client", "install tinkermesh[scheduler]")
            ]
        last = done.stderr.strip().splitlines()[-1:]
        return [error("redis", f"the check itself ended with {done.returncode}: {' '.join(last)}", "report this")]
