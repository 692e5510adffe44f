"""Links to a checkpoint's files that need no API key: signed, for one version, for a while."""

from __future__ import annotations

import hashlib
import hmac
import time
from typing import NamedTuple
from urllib.parse import quote, urlencode

from services.common.errors import Forbidden
from services.common.keyring import same_digest
from services.common.tinker_path import TinkerPath

LINK_SECONDS = 3600
_PURPOSE = b"tinkermesh-download-links-1"


class Target(NamedTuple):
    """One file of a version, or with `file` "" all of them as an archive."""

    path: TinkerPath
    version: str
    file: str = ""
    account: str = ""  # whose link it is, see `Links.account`


class Links:
    """The key is derived from the pepper, so every gateway replica accepts every other's links."""

    def __init__(self, pepper: bytes) -> None:
        self._key = hmac.new(pepper, _PURPOSE, hashlib.sha256).digest()

    def account(self, tenant: str) -> str:
        """What stands for a tenant in a link: it says nothing to whoever holds the link."""
        return hmac.new(self._key, tenant.encode(), hashlib.sha256).hexdigest()[:16]

    def relative(self, target: Target, expires: int) -> str:
        """Path and query below the API's prefix."""
        run, kind, name = target.path
        parts = (*(("files", target.file) if target.file else ("archive",)),)
        where = "/".join(quote(part, safe=":") for part in ("downloads", run, kind, name, target.version, *parts))
        signed = {"expires": expires, "for": target.account, "signature": self._signature(target, expires)}
        return f"/{where}?{urlencode(signed)}"

    def check(self, target: Target, expires: str, signature: str) -> None:
        """Raises Forbidden."""
        whole = expires.isascii() and expires.isdigit() and len(expires) <= 12
        if not whole or not same_digest(self._signature(target, int(expires)), signature):
            raise Forbidden("this download link is not one of this mesh, or was changed; ask for a new one")
        if int(expires) <= time.time():
            raise Forbidden("this download link is too old; ask for a new one")

    def _signature(self, target: Target, expires: int) -> str:
        mac = hmac.new(self._key, digestmod=hashlib.sha256)
        for part in (*target.path, target.version, target.file, target.account, str(expires)):
            data = part.encode()
            mac.update(len(data).to_bytes(4, "little") + data)
        return mac.hexdigest()


def end_of_links(checkpoint_expires_ms: int) -> int:
    """Unix seconds: an hour from now, or the checkpoint's own end."""
    latest = int(time.time()) + LINK_SECONDS
    return min(latest, checkpoint_expires_ms // 1000) if checkpoint_expires_ms else latest
