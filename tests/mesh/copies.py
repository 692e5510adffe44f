"""A POST as an anxious client sends it: five times at once over every gateway, and with another payload."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import httpx

from tests.doubles.wire_client import Body, Json, WireClient

COPIES = 5


@dataclass(slots=True)
class Said:
    """Which POSTs, named ``route`` or ``route form``, were sent in copies and with a changed payload."""

    in_copies: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)


class Copies:
    def __init__(self, client: WireClient, said: Said) -> None:
        self.client = client
        self._said = said

    async def five(self, post: str, body: Body, *, path: str = "", **headers: str) -> Json:
        """The one answer that all copies got."""
        return the_one(await self.answers(post, [body] * COPIES, path=path, **headers))

    async def answers(
        self, post: str, bodies: Sequence[Body], *, path: str = "", **headers: str
    ) -> list[httpx.Response]:
        assert len(bodies) == COPIES
        self._said.in_copies.add(post)
        return await self.client.post_many(path or route(post), bodies, **headers)

    async def refused(
        self,
        post: str,
        changed: Sequence[Body],
        look: Callable[[], Awaitable[object]],
        words: str = "already used",
        **headers: str,
    ) -> None:
        """Each of `changed`, under the key of a command that was accepted: refused by every gateway.

        `look` reads the accepted one's outcome: it arrives, and is the same after more refusals.
        """
        self._said.changed.add(post)
        await self._refusals(post, changed, words, **headers)
        seen = await look()
        assert "error" not in str(seen), seen
        await self._refusals(post, changed, words, **headers)
        assert await look() == seen

    async def _refusals(self, post: str, changed: Sequence[Body], words: str, **headers: str) -> None:
        for body in changed:
            for answer in await self.client.post_many(route(post), [body, body], **headers):
                assert answer.status_code == 400, (body, answer.text[:300])
                assert words in answer.text, answer.text[:300]

    def outcome(self, accepted: Json) -> Callable[[], Awaitable[object]]:
        return lambda: self.client.future(accepted["request_id"])


def route(post: str) -> str:
    return f"/{post.split()[0]}"


def the_one(answers: Sequence[httpx.Response]) -> Json:
    """Every answer is 200 and says the same."""
    assert [answer.status_code for answer in answers] == [200] * len(answers), [a.text[:300] for a in answers]
    bodies = [answer.json() for answer in answers]
    assert all(body == bodies[0] for body in bodies), bodies
    return dict(bodies[0])
