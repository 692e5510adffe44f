"""Saves under one name that come in one millisecond are two saves."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from services.common.ids import parse_request_id
from services.common.store import public_directory
from services.common.tinker_path import parse_tinker_path
from services.scheduler.store import keys
from tests.contract.scheduler.recovering import final_state
from tests.contract.scheduler.requests import new_session
from tests.contract.scheduler.rig import Mesh
from tests.doubles.published import read_state

TRIES = 200


async def admitted_ms(mesh: Mesh, request_id: str) -> bytes:
    row = parse_request_id(request_id)
    return cast("bytes", await cast("Any", mesh.redis.hget(keys.req(row.pool, row.key), "admitted_ms")))


async def two_saves(mesh: Mesh, model: str, seq: int, name: str, *, overwrite: bool) -> tuple[str, str, bool]:
    """Around a round of training, which comes after both; and whether they came in one millisecond."""
    first, second = await asyncio.gather(
        mesh.save(model, seq, name), mesh.save(model, seq + 3, name, overwrite=overwrite)
    )
    await mesh.batch(model, seq + 1, [3, 4])
    await mesh.step(model, seq + 2)
    return first, second, await admitted_ms(mesh, first) == await admitted_ms(mesh, second)


async def test_a_save_of_the_same_millisecond_is_refused_the_taken_name_CKPT_04(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    for number in range(TRIES):
        first, second, at_once = await two_saves(mesh, model, 4 * number + 1, f"kept-{number}", overwrite=False)
        await mesh.done(first)
        assert "exists already" in (await mesh.failed(second)).message
        if at_once:
            return
    raise AssertionError(f"no two saves of {TRIES} pairs came in one millisecond")


async def test_a_save_of_the_same_millisecond_overwrites_the_first_CKPT_01(mesh: Mesh) -> None:
    model = await mesh.opened(new_session())
    for number in range(TRIES):
        _, second, at_once = await two_saves(mesh, model, 5 * number + 1, f"kept-{number}", overwrite=True)
        path = (await mesh.done(second)).save.path
        state = read_state(mesh.root, public_directory(parse_tinker_path(path)))
        assert state == await final_state(mesh, model, 5 * number + 5)
        if at_once:
            return
    raise AssertionError(f"no two saves of {TRIES} pairs came in one millisecond")
