"""SEC-02 and SEC-03: only keyed digests are stored; an allow-list decides; tenants are stable."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.common.errors import InvalidInput
from services.common.keyring import Keyring, is_sealed, load_pepper, ownership_mac
from tests.doubles.known_keys import tenant_of

KEY = "tml-SECRET-0123456789"


@pytest.fixture
def pepper(tmp_path: Path) -> bytes:
    return load_pepper(tmp_path / "pepper", create=True)


def test_raw_key_never_reaches_the_file_SEC_02(tmp_path: Path, pepper: bytes) -> None:
    Keyring(tmp_path / "keys.json", pepper).add(KEY)
    assert KEY.encode() not in (tmp_path / "keys.json").read_bytes()
    assert (tmp_path / "keys.json").stat().st_mode & 0o077 == 0


def test_any_string_is_not_a_tenant_SEC_03(tmp_path: Path, pepper: bytes) -> None:
    ring = Keyring(tmp_path / "keys.json", pepper)
    assert tenant_of(ring, KEY) == ""
    tenant = ring.add(KEY)
    assert tenant_of(ring, KEY) == tenant
    assert tenant_of(ring, KEY + "x") == ""


def test_rotation_keeps_the_tenant(tmp_path: Path, pepper: bytes) -> None:
    ring = Keyring(tmp_path / "keys.json", pepper)
    tenant = ring.add(KEY)
    assert ring.add("tml-new", tenant_id=tenant) == tenant
    assert tenant_of(ring, "tml-new") == tenant_of(ring, KEY) == tenant


def test_another_process_sees_a_new_key(tmp_path: Path, pepper: bytes) -> None:
    reader, writer = (Keyring(tmp_path / "keys.json", pepper) for _ in range(2))
    assert tenant_of(reader, KEY) == ""
    tenant = writer.add(KEY)
    assert tenant_of(reader, KEY) == tenant


def test_a_change_waits_for_another_process_s_and_keeps_it(tmp_path: Path, pepper: bytes) -> None:
    mine, theirs = (Keyring(tmp_path / "keys.json", pepper) for _ in range(2))
    mine.add(KEY)
    with (tmp_path / ".keys.json.lock").open() as lock, ThreadPoolExecutor(1) as pool:
        fcntl.flock(lock, fcntl.LOCK_EX)
        adding = pool.submit(mine.add, "tml-mine")
        with pytest.raises(TimeoutError):
            adding.result(0.2)
        before = set(theirs.entries())
        fcntl.flock(lock, fcntl.LOCK_UN)
        adding.result(10)
    assert len(before) == 1
    assert len(theirs.entries()) == 2


def test_keys_added_at_once_are_all_there(tmp_path: Path, pepper: bytes) -> None:
    def add(number: int) -> str:
        return Keyring(tmp_path / "keys.json", pepper).add(f"tml-{number}")

    with ThreadPoolExecutor(8) as pool:
        tenants = set(pool.map(add, range(40)))
    assert Keyring(tmp_path / "keys.json", pepper).tenants() == tenants
    assert len(tenants) == 40


def test_peppers_made_at_once_are_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: load_pepper(tmp_path / "pepper", create=True), range(16)))) == 1


def test_another_pepper_knows_no_key_SEC_03(tmp_path: Path, pepper: bytes) -> None:
    Keyring(tmp_path / "keys.json", pepper).add(KEY)
    other = load_pepper(tmp_path / "other", create=True)
    assert tenant_of(Keyring(tmp_path / "keys.json", other), KEY) == ""


def test_a_new_pepper_on_top_keeps_the_keys_and_seals_of_the_former_SEC_03(tmp_path: Path, pepper: bytes) -> None:
    tenant = Keyring(tmp_path / "keys.json", pepper).add(KEY)
    seal = ownership_mac(pepper, "tenant", "model", "weights", "name")
    fresh = "f" * 64
    (tmp_path / "pepper").write_text(f"{fresh}\n{pepper.decode()}\n")
    both = load_pepper(tmp_path / "pepper")
    assert both == fresh.encode() and both.former == (pepper,)
    ring = Keyring(tmp_path / "keys.json", both)
    assert tenant_of(ring, KEY) == tenant
    assert ring.add(KEY) == tenant, "no second tenant for a key that is known"
    ring.add("tml-made-now", tenant_id=tenant)
    assert is_sealed(both, seal, "tenant", "model", "weights", "name")
    assert not is_sealed(both, seal, "another", "model", "weights", "name")
    (tmp_path / "pepper").write_text(fresh)
    alone = load_pepper(tmp_path / "pepper")
    assert not is_sealed(alone, seal, "tenant", "model", "weights", "name")
    assert tenant_of(Keyring(tmp_path / "keys.json", alone), "tml-made-now") == tenant
    assert tenant_of(Keyring(tmp_path / "keys.json", alone), KEY) == ""


@pytest.mark.parametrize("content", [b"x" * 64 + b"\nshort", b"", b"\n\n"])
def test_every_pepper_must_be_long(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pepper").write_bytes(content)
    with pytest.raises(InvalidInput, match="fewer than 32"):
        load_pepper(tmp_path / "pepper")


def test_a_binary_pepper_is_one_whatever_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_bytes(b"\xff" * 20 + b"\n" + b"\xfe" * 20)
    assert load_pepper(tmp_path / "pepper") == b"\xff" * 20 + b"\n" + b"\xfe" * 20


def test_key_must_look_like_the_sdk_wants(tmp_path: Path, pepper: bytes) -> None:
    with pytest.raises(InvalidInput, match="tml-"):
        Keyring(tmp_path / "keys.json", pepper).add("secret")


def test_short_pepper_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pepper").write_text("short")
    with pytest.raises(InvalidInput, match="fewer than 32"):
        load_pepper(tmp_path / "pepper")


def test_ownership_mac_binds_every_part_SEC_08(pepper: bytes) -> None:
    base = ("tenant", "model", "weights", "name")
    macs = {ownership_mac(pepper, *base)}
    for index in range(4):
        macs.add(ownership_mac(pepper, *(part + "x" if i == index else part for i, part in enumerate(base))))
    macs.add(ownership_mac(pepper, "tenantm", "odel", "weights", "name"))
    assert len(macs) == 6


def test_a_file_of_another_scheme_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text('{"scheme": "plain", "keys": {}}')
    with pytest.raises(InvalidInput, match="scheme 'plain', this mesh reads 'hmac-sha256-1'"):
        Keyring(tmp_path / "keys.json", b"p" * 32).tenants()
