"""Who is calling: X-API-Key, else a Bearer token; an API key, or a JWT made from one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from tinkermesh.v1 import tenants_pb2 as pb

from services.common.clock import now_ms
from services.common.errors import InvalidInput, Unauthenticated, Unavailable
from services.common.keyring import KEY_PREFIX, KeyEntry, Keyring, digest, key_id, peppers_of
from services.gateway.errors import InvalidToken
from services.gateway.tokens import PREFIX, Tokens
from services.gateway.upstream.keys import KeyAnswers


class Caller(NamedTuple):
    """`token_ends`: unix seconds at which the credential itself ends, 0 = it is an API key."""

    tenant: str
    key_id: str
    label: str = ""
    token_ends: int = 0


NOBODY = Caller("", "")
_UNKNOWN = "API key is not known to this mesh; set TINKER_API_KEY to a key its operator gave you"


class Authenticator:
    """Keys live only in local variables here; nothing else in the gateway sees one."""

    def __init__(self, keyring: Keyring, pepper: bytes, answers: KeyAnswers, tokens: Tokens | None) -> None:
        self._keyring = keyring
        self._pepper = pepper
        self._answers = answers
        self._tokens = tokens

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """Raises Unauthenticated, and Unavailable while keys cannot be checked."""
        credential = headers.get("x-api-key", "").strip() or _bearer(headers.get("authorization", ""))
        if not credential:
            raise Unauthenticated("no API key: send it as X-API-Key, or as Authorization: Bearer <key>")
        if self._tokens is not None and credential.startswith(PREFIX):
            return await self._of_token(self._tokens, credential)
        if not credential.startswith(KEY_PREFIX):  # no key of any mesh: nobody needs to be asked
            raise Unauthenticated(_UNKNOWN)
        digests = [digest(pepper, credential) for pepper in peppers_of(self._pepper)]
        for key_digest in digests[:-1]:  # a key that was made under a former pepper is good until it is replaced
            if await self._is_known(key_digest):
                return await self._of_key(key_digest)
        return await self._of_key(digests[-1])

    def access_digest(self, token: str | None) -> str:
        """Keyed digest of a weights_access_token; "" when there is none."""
        return digest(self._pepper, token) if token else ""

    def forget(self, wanted_id: str, headers: Mapping[str, str]) -> None:
        """This key has just changed: ask anew."""
        credential = headers.get("x-api-key", "").strip() or _bearer(headers.get("authorization", ""))
        self._answers.forget(wanted_id, *(digest(pepper, credential) for pepper in peppers_of(self._pepper)))

    async def _is_known(self, key_digest: str) -> bool:
        reply = await self._answers.of_digest(key_digest)
        return reply.state != "unknown" or self._in_file(key_digest) is not None

    async def _of_key(self, key_digest: str) -> Caller:
        reply = await self._answers.of_digest(key_digest)
        if reply.state == "unknown":
            return self._of_file(key_digest, reply)
        if reply.state != "active" or _over(reply.expires_unix_ms):
            raise Unauthenticated(_ended(reply))
        return Caller(reply.tenant_id, reply.key_id, reply.label)

    async def _of_token(self, tokens: Tokens, credential: str) -> Caller:
        claims = tokens.read(credential)
        reply = await self._answers.of_id(claims.key_id)
        if reply.state == "unknown":
            with _reading_file():
                key_digest = self._keyring.digest_of(claims.key_id)
            entry = self._file_entry(key_digest)
            self._answers.remember(claims.key_id, reply)
            reply = pb.ResolveKeyReply(state=entry.state(now_ms()), tenant_id=entry.tenant_id, label=entry.label)
        if reply.state != "active" or _over(reply.expires_unix_ms) or reply.tenant_id != claims.tenant:
            raise InvalidToken(_ended(reply))
        return Caller(claims.tenant, claims.key_id, reply.label, claims.expires_unix)

    def _of_file(self, key_digest: str, reply: pb.ResolveKeyReply) -> Caller:
        entry = self._file_entry(key_digest)
        self._answers.remember(key_digest, reply)
        if (state := entry.state(now_ms())) != "active":
            raise Unauthenticated(_ended(pb.ResolveKeyReply(state=state)))
        return Caller(entry.tenant_id, key_id(key_digest), entry.label)

    def _in_file(self, key_digest: str) -> KeyEntry | None:
        with _reading_file():
            return self._keyring.find(key_digest)

    def _file_entry(self, key_digest: str) -> KeyEntry:
        entry = self._in_file(key_digest)
        if entry is None:
            raise Unauthenticated(_UNKNOWN)
        return entry


@contextmanager
def _reading_file() -> Iterator[None]:
    """A key file that cannot be read is its operator's fault, not the caller's. Raises Unavailable."""
    try:
        yield
    except InvalidInput as error:
        raise Unavailable(f"API keys cannot be checked now: {error.message}") from error


def _over(expires_ms: int) -> bool:
    return 0 < expires_ms <= now_ms()


def _ended(reply: pb.ResolveKeyReply) -> str:
    state = "expired" if reply.state == "active" else reply.state
    return f"this API key is {state}; set TINKER_API_KEY to one its operator gave you"


def _bearer(header: str) -> str:
    scheme, _, value = header.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""
