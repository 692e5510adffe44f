"""Short-lived tokens in place of API keys: JWTs signed with a key of our own making (HS256).

A token names the key it was made from. Every request asks whether that key is still good, so a
token never outlives it; and a token made from a token ends when the first one ends.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import NamedTuple

import jwt

from services.gateway.errors import InvalidToken

ALGORITHM = "HS256"
ISSUER = "tinkermesh"
PREFIX = "eyJ"


class Claims(NamedTuple):
    key_id: str
    tenant: str
    expires_unix: int


class Tokens:
    def __init__(self, pepper: bytes, lifetime_seconds: int) -> None:
        self._secret = hmac.new(pepper, b"tinkermesh-jwt-1", hashlib.sha256).digest()
        self._lifetime = lifetime_seconds

    def issue(self, tenant: str, key_id: str, label: str, not_after: int = 0) -> str:
        """`not_after`: unix seconds beyond which it must not last, 0 = its full lifetime."""
        now = int(time.time())
        ends = now + self._lifetime
        claims = {
            "iss": ISSUER,
            "sub": f"tinkermesh:tenant:{tenant}",
            "org_id": tenant,
            "tenant": tenant,
            "key": key_id,
            "name": label,
            "iat": now,
            "exp": min(ends, not_after) if not_after else ends,
        }
        return jwt.encode(claims, self._secret, ALGORITHM)

    def read(self, token: str) -> Claims:
        """Raises InvalidToken."""
        try:
            found = jwt.decode(
                token,
                self._secret,
                [ALGORITHM],
                issuer=ISSUER,
                options={"require": ["exp", "iat", "iss"], "verify_sub": False},
            )
            return Claims(str(found["key"]), str(found["tenant"]), int(found["exp"]))
        except (jwt.InvalidTokenError, KeyError, ValueError) as error:
            text = (
                "token has expired" if isinstance(error, jwt.ExpiredSignatureError) else "token is not one of this mesh"
            )
            raise InvalidToken(f"{text}; exchange the API key for a new one at auth/token") from error
