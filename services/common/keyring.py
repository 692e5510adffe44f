"""API keys as keyed digests, each mapping to a stable tenant id.

The file holds no key: only HMAC-SHA256 digests under a server-side pepper (its own file, mode
0600). Several keys may map to one tenant, so a key can be rotated without orphaning anything.

    {"scheme": "hmac-sha256-1", "keys": {"<digest hex>": {"tenant_id": "...", "label": "..."}}}

The file is what a mesh starts with. Keys made while it runs are kept by the scheduler, whose word
on a key goes before the file's (services/scheduler/tenancy).
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from services.common.clock import now_ms
from services.common.errors import InvalidInput

SCHEME = "hmac-sha256-1"
KEY_PREFIX = "tml-"
KEY_ID_PREFIX = "key-"
_KEY_ID_DIGITS = 12

KeyState = Literal["active", "expired", "revoked"]


class KeyEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """Times are unix milliseconds, 0 = never or not known."""

    tenant_id: str
    label: str = ""
    created_ms: int = 0
    expires_ms: int = 0
    revoked_ms: int = 0

    def state(self, now_ms: int) -> KeyState:
        if self.revoked_ms:
            return "revoked"
        return "expired" if self.expires_ms and self.expires_ms <= now_ms else "active"

    def ending(self, expires_ms: int) -> KeyEntry:
        """Never later than it would have ended anyway."""
        return msgspec.structs.replace(self, expires_ms=min(self.expires_ms or expires_ms, expires_ms))

    def revoked(self, at_ms: int) -> KeyEntry:
        """The first revocation's time stays."""
        return msgspec.structs.replace(self, revoked_ms=self.revoked_ms or at_ms)


class KeyFile(msgspec.Struct):
    scheme: str = SCHEME
    keys: dict[str, KeyEntry] = {}


class Pepper(bytes):
    """The secret that is used now; `former` ones still vouch for what was made under them."""

    former: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, current: bytes, *former: bytes) -> Pepper:
        made = cls(current)
        made.former = former
        return made


def load_pepper(path: Path, *, create: bool = False) -> Pepper:
    """32 or more secret bytes, in text form one to a line: the current pepper, then former ones.

    Raises InvalidInput when the file is missing or one is too short.
    """
    if create and not path.exists():
        with _only_writer(path):
            if not path.exists():
                _write_private(path, secrets.token_hex(32).encode())
    try:
        content = path.read_bytes().strip()
    except OSError as error:
        raise InvalidInput(f"pepper file {path.name}: {error.strerror}") from error
    peppers = [line.strip() for line in content.splitlines()] if content.isascii() else [content]
    peppers = [pepper for pepper in peppers if pepper] or [b""]
    if any(len(pepper) < 32 for pepper in peppers):
        raise InvalidInput(f"pepper file {path.name} holds fewer than 32 bytes (in a line)")
    return Pepper.of(*peppers)


def peppers_of(pepper: bytes) -> tuple[bytes, ...]:
    """The current one first."""
    return (pepper, *pepper.former) if isinstance(pepper, Pepper) else (pepper,)


def digest(pepper: bytes, secret: str) -> str:
    """Hex HMAC-SHA256 of a key or access token."""
    return hmac.new(pepper, secret.encode(), hashlib.sha256).hexdigest()


def key_id(key_digest: str) -> str:
    """A key's public name: the head of its keyed digest, of no use without the pepper."""
    return KEY_ID_PREFIX + key_digest[:_KEY_ID_DIGITS]


def new_secret() -> str:
    return KEY_PREFIX + secrets.token_urlsafe(32)


def ownership_mac(pepper: bytes, tenant_id: str, model_id: str, kind: str, name: str) -> str:
    """Hex MAC that ties an artifact to its tenant; every part is length-prefixed."""
    mac = hmac.new(pepper, b"tinkermesh-ownership-1", hashlib.sha256)
    for part in (tenant_id, model_id, kind, name):
        data = part.encode()
        mac.update(len(data).to_bytes(4, "little") + data)
    return mac.hexdigest()


def is_sealed(pepper: bytes, mac: str, tenant_id: str, model_id: str, kind: str, name: str) -> bool:
    """Whether `mac` is the ownership MAC of these under the current pepper or a former one."""
    return any(same_digest(ownership_mac(p, tenant_id, model_id, kind, name), mac) for p in peppers_of(pepper))


def same_digest(left: str, right: str) -> bool:
    return hmac.compare_digest(left.encode(), right.encode())


class Keyring:
    """The allow-list; re-read when the file changes."""

    def __init__(self, path: Path, pepper: bytes) -> None:
        self._path = path
        self._pepper = pepper
        self._stamp: tuple[int, int] | None = None
        self._keys: dict[str, KeyEntry] = {}
        self._ids: dict[str, str] = {}

    def find(self, key_digest: str) -> KeyEntry | None:
        """The entry of a key or access token, active or not. Raises InvalidInput when the file is broken."""
        self._refresh()
        return self._keys.get(key_digest)

    def digest_of(self, wanted_id: str) -> str:
        """The digest of the key named `wanted_id`, "" when there is none."""
        self._refresh()
        return self._ids.get(wanted_id, "")

    def entries(self) -> dict[str, KeyEntry]:
        """Digest -> entry."""
        self._refresh()
        return dict(self._keys)

    def tenants(self) -> set[str]:
        """The ids of all tenants that have a key."""
        self._refresh()
        return {entry.tenant_id for entry in self._keys.values()}

    def add(self, key: str, *, tenant_id: str = "", label: str = "", expires_ms: int = 0) -> str:
        """Admit `key`; answers its tenant id (a new random one unless given). A known key stays as it is."""
        if not key.startswith(KEY_PREFIX):
            raise InvalidInput(f"API key must start with {KEY_PREFIX!r} (the SDK insists)")
        self._refresh()
        for pepper in peppers_of(self._pepper):
            if (known := self._keys.get(digest(pepper, key))) is not None:
                return known.tenant_id
        fresh = KeyEntry(tenant_id or str(uuid.uuid4()), label, now_ms(), expires_ms)
        return self.change(digest(self._pepper, key), lambda held: held or fresh).tenant_id

    def change(self, key_digest: str, change: Callable[[KeyEntry | None], KeyEntry]) -> KeyEntry:
        """Replaces the entry by what `change` makes of it; other processes' changes are not lost."""
        with _only_writer(self._path):
            self._refresh()
            held = self._keys.get(key_digest)
            made = change(held)
            if made != held:
                self._set({**self._keys, key_digest: made})
                _write_private(self._path, msgspec.json.format(msgspec.json.encode(KeyFile(keys=self._keys))))
        return made

    def _set(self, keys: dict[str, KeyEntry]) -> None:
        self._keys = keys
        self._ids = {key_id(key_digest): key_digest for key_digest in keys}

    def _refresh(self) -> None:
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._set({})
            self._stamp = None
            return
        stamp = (status.st_mtime_ns, status.st_size)
        if stamp == self._stamp:
            return
        try:
            content = msgspec.json.decode(self._path.read_bytes(), type=KeyFile)
        except (msgspec.DecodeError, OSError) as error:
            raise InvalidInput(f"key file {self._path.name} cannot be read: {error}") from error
        if content.scheme != SCHEME:
            raise InvalidInput(
                f"key file {self._path.name} has scheme {content.scheme[:40]!r}, this mesh reads {SCHEME!r}"
            )
        self._set(content.keys)
        self._stamp = stamp


@contextmanager
def _only_writer(path: Path) -> Iterator[None]:
    """One process at a time changes `path`; the file itself is replaced, so the lock is a file beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
