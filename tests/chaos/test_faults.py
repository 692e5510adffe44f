"""A storm tells of every fault that happened."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tests.chaos.faults import Storm
from tests.chaos.history import Fault, make

POINT = "redis:train_view:before"


class Quiet:
    """A mesh without processes. Its last arm fires while the storm ends."""

    def __init__(self, directory: Path) -> None:
        self.arms = directory

    def disarm(self) -> None:
        (self.arms / "fired-6-0").write_text(json.dumps({"point": POINT, "pid": 0}))


async def test_a_point_that_fires_as_the_storm_ends_is_told(tmp_path: Path) -> None:
    fault = Fault("kill", "", point=POINT, holder="scheduler", nth=1)
    storm = Storm(cast("Any", Quiet(tmp_path)), replace(make(6), faults=(fault,)))
    raging = asyncio.create_task(storm.rage())
    await asyncio.sleep(0)
    raging.cancel()
    await asyncio.wait({raging})
    assert [one.where for one in storm.happened] == [POINT]
