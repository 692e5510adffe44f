"""Who is calling: X-API-Key, else a Bearer token, looked up in the allow-list."""

from __future__ import annotations

from collections.abc import Mapping

from services.common.errors import InvalidInput, Unauthenticated, Unavailable
from services.common.keyring import Keyring, digest


class Authenticator:
    """Keys live only in local variables here; nothing else in the gateway sees one."""

    def __init__(self, keyring: Keyring, pepper: bytes) -> None:
        self._keyring = keyring
        self._pepper = pepper

    def tenant_of(self, headers: Mapping[str, str]) -> str:
        """The tenant id of the caller. Raises Unauthenticated."""
        key = headers.get("x-api-key", "").strip() or _bearer(headers.get("authorization", ""))
        if not key:
            raise Unauthenticated("no API key: send it as X-API-Key, or as Authorization: Bearer <key>")
        try:
            return self._keyring.tenant_of(key)
        except InvalidInput as error:  # the operator's file, not the caller's fault
            raise Unavailable(f"API keys cannot be checked now: {error.message}") from error

    def access_digest(self, token: str | None) -> str:
        """Keyed digest of a weights_access_token; "" when there is none."""
        return digest(self._pepper, token) if token else ""


def _bearer(header: str) -> str:
    scheme, _, value = header.partition(" ")
    return value.strip() if scheme.lower() == "bearer" else ""
