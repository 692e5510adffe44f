"""Where Redis is, as operators write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.common.errors import InvalidInput
from services.common.redis_url import parse_redis_url
from services.scheduler.store.connection import connect


def test_a_server_with_account_and_tls() -> None:
    address = parse_redis_url(
        "rediss://mesh:p%40ss%2Fword@redis.example:6380/2?ssl_ca_certs=/ca.pem&ssl_cert_reqs=none"
    )
    assert (address.kind, address.hosts, address.db) == ("server", (("redis.example", 6380),), 2)
    assert (address.username, address.password) == ("mesh", "p@ss/word")
    assert address.tls == {"ssl": True, "ssl_ca_certs": "/ca.pem", "ssl_cert_reqs": "none"}


def test_sentinels_with_their_own_password() -> None:
    url = "redis+sentinel://:secret@s1:26379,s2,[::1]:5000/1?master=mesh&sentinel_password=other"
    address = parse_redis_url(url)
    assert (address.kind, address.master, address.db) == ("sentinel", "mesh", 1)
    assert address.hosts == (("s1", 26379), ("s2", 26379), ("::1", 5000))
    assert (address.password, address.sentinel_password, address.tls) == ("secret", "other", {})


def test_a_cluster_over_tls() -> None:
    address = parse_redis_url("rediss+cluster://a:7000,b:7001")
    assert (address.kind, address.hosts, address.tls) == ("cluster", (("a", 7000), ("b", 7001)), {"ssl": True})


def test_the_password_file_wins_and_no_secret_is_shown_SEC_02(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("from-file\n")
    address = parse_redis_url("redis+sentinel://u:in-url@s1/0?master=m&sentinel_password=third", str(secret))
    assert address.password == "from-file"
    for text in (str(address), repr(address), f"{address}"):
        assert not any(word in text for word in ("from-file", "in-url", "third"))


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://a", "scheme 'http'"),
        ("redis+sentinel://a", "master=NAME"),
        ("redis://:secret@a:port/0", "no host:port"),
        ("redis://:secret@", "no host:port"),
        ("redis://:secret@a/one", "is no number"),
        ("redis+cluster://:secret@a/1", "database 0 only"),
        ("redis://:secret@a/0?ssl_ca_cert=x", "unknown option ssl_ca_cert"),
    ],
)
def test_what_does_not_fit_is_named_without_the_password(url: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        connect(url)
    assert "secret" not in refused.value.message


def test_a_password_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match="redis_password_file /nowhere"):
        connect("redis://a", password_file="/nowhere")
