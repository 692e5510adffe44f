"""Where Redis is: one server, a set of sentinels, or a cluster; with TLS and a password where there is one.

    redis://[user:password@]host:port/db             one server
    redis+sentinel://[user:password@]h1:p1,h2:p2/db?master=NAME   whatever these sentinels call the primary
    redis+cluster://[user:password@]h1:p1,h2:p2      a cluster; these nodes are asked for the others

``rediss`` in place of ``redis`` means TLS. Options after ``?``: ssl_ca_certs, ssl_certfile, ssl_keyfile
(paths), ssl_cert_reqs (required | none), and for sentinels that have an own password sentinel_username
and sentinel_password. User and password are percent-encoded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from services.common.errors import InvalidInput

Kind = Literal["server", "sentinel", "cluster"]
_SCHEMES: dict[str, Kind] = {"": "server", "+sentinel": "sentinel", "+cluster": "cluster"}
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs")
_SENTINEL = ("master", "sentinel_username", "sentinel_password")
DEFAULT_PORTS: dict[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}


class RedisAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says. `tls` are keyword arguments of the client library; empty = no TLS."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = None
    db: int = 0
    tls: dict[str, Any] = {}
    master: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = None

    def __str__(self) -> str:
        """Without any secret: fit for logs and errors."""
        places = ",".join(f"{host}:{port}" for host, port in self.hosts)
        named = f" (master {self.master})" if self.master else ""
        return f"{self.kind} {places}{named}{' over TLS' if self.tls else ''}"

    __repr__ = __str__


def parse_redis_url(url: str, password_file: str = "") -> RedisAddress:
    """The address of `url`; the content of `password_file` is the password when one is named.

    Raises InvalidInput naming the part that does not fit, never the password.
    """
    parts = urlsplit(url)
    tls, kind = _scheme(parts.scheme)
    options = dict(parse_qsl(parts.query))
    known = {*_TLS, *(_SENTINEL if kind == "sentinel" else ())}
    if unknown := sorted(set(options) - known):
        raise InvalidInput(f"redis_url: unknown option {unknown[0]}; known are {', '.join(sorted(known))}")
    account, _, places = parts.netloc.rpartition("@")
    username, _, password = account.partition(":")
    if kind == "sentinel" and not options.get("master"):
        raise InvalidInput("redis_url: name the primary the sentinels watch: ?master=NAME")
    return RedisAddress(
        kind=kind,
        hosts=tuple(_place(place, DEFAULT_PORTS[kind]) for place in places.split(",")),
        username=unquote(username) or None,
        password=_secret(password_file) if password_file else unquote(password) or None,
        db=_db(parts.path, kind),
        tls={"ssl": True, **{name: options[name] for name in _TLS if name in options}} if tls else {},
        master=options.get("master", ""),
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )


def _scheme(scheme: str) -> tuple[bool, Kind]:
    word, plus, rest = scheme.partition("+")
    if word not in ("redis", "rediss") or plus + rest not in _SCHEMES:
        raise InvalidInput(
            f"redis_url: scheme {scheme!r} is none of redis, redis+sentinel, redis+cluster (rediss: TLS)"
        )
    return word == "rediss", _SCHEMES[plus + rest]


def _place(text: str, default_port: int) -> tuple[str, int]:
    split = urlsplit(f"//{text}")
    try:
        port = split.port or default_port
    except ValueError as error:
        raise InvalidInput(f"redis_url: {text!r} is no host:port") from error
    if not split.hostname:
        raise InvalidInput(f"redis_url: {text!r} is no host:port")
    return split.hostname, port


def _db(path: str, kind: Kind) -> int:
    text = path.strip("/")
    if text and not text.isdigit():
        raise InvalidInput(f"redis_url: database {text!r} is no number")
    if kind == "cluster" and int(text or 0):
        raise InvalidInput("redis_url: a cluster has database 0 only")
    return int(text or 0)


def _secret(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise InvalidInput(f"redis_password_file {path} cannot be read: {error.strerror}") from error
