"""docs/sizing.md's formulas of samples, against what the mesh's Redis really grows by."""

from __future__ import annotations

import asyncio

import pytest
from redis.asyncio import Redis

from tests.doubles.mesh import MeshProcesses
from tests.doubles.sizing import bytes_of, memory_of_keys
from tests.doubles.wire_client import WireClient
from tests.mesh.main_path import accepted, base_sampler, sample

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]
COUNT, PROMPT = 40, 100
FEW, MANY = 20, 300


async def grown_by_samples(mesh: MeshProcesses) -> list[float]:
    """Bytes a settled sample of FEW and of MANY tokens; a first one brings what is there once and is not counted."""
    client, server = WireClient([mesh.base_url], mesh.api_key), Redis.from_url(f"redis://{mesh.mesh.addresses.redis}")
    sampler = await base_sampler(client, await client.session())
    prompt = tuple(range(200, 200 + PROMPT))

    async def run(first: int, count: int, tokens: int) -> float:
        before = await memory_of_keys(server)
        bodies = [sample(sampler, first + n, prompt=prompt, tokens=tokens) for n in range(count)]
        for request in [(await accepted(client, "/asample", body))["request_id"] for body in bodies]:
            await client.future(request)
        return (await memory_of_keys(server) - before) / count

    await run(1, 1, FEW)
    grown = [await run(2, COUNT, FEW), await run(2 + COUNT, COUNT, MANY)]
    await server.aclose()
    await client.close()
    return grown


def test_settled_samples_take_at_most_what_the_formula_says(plain_mesh: MeshProcesses) -> None:
    """And not much less: the double's token ids are smaller than a real vocabulary's."""
    seen = asyncio.run(grown_by_samples(plain_mesh))
    said = [bytes_of("settled sample", prompt=PROMPT, sampled=tokens) for tokens in (FEW, MANY)]
    assert all(0.4 <= one / most <= 1.0 for one, most in zip(seen, said, strict=True)), (seen, said)
    each = (seen[1] - seen[0]) / (MANY - FEW)
    assert 4.0 <= each <= (said[1] - said[0]) / (MANY - FEW)  # four bytes are the logprob alone
