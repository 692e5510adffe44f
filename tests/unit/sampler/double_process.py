"""`python -m tests.unit.sampler.double_process`: the sampler's process on a double of the engine."""

from __future__ import annotations

import asyncio
import os

from services.common import telemetry
from services.common.settings import from_environment
from services.sampler.process import serve
from services.sampler.settings import Settings
from tests.unit.sampler.doubles import FakeEngine


def main() -> None:
    settings = from_environment(Settings, "sampler", os.environ).check()
    telemetry.configure("sampler", "double")
    try:
        asyncio.run(serve(settings, lambda settings, facts: FakeEngine()))
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    main()
