"""`tinkermesh keys` on a mesh that is down, and where it looks for one that is up."""

from __future__ import annotations

import fcntl
import re
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from services.common.keyring import Keyring, load_pepper
from services.local import cli
from tests.doubles.known_keys import tenant_of

runner = CliRunner()


def keys(directory: Path, *arguments: str) -> Result:
    return runner.invoke(cli.app, ["keys", *arguments, "--state-dir", str(directory)])


def made(result: Result) -> tuple[str, str, str]:
    """(secret, key id, tenant)."""
    assert result.exit_code == 0, result.output
    found = re.search(r"key +(tml-\S+)\s+tenant +(\S+)\s+id +(\S+)", result.output)
    assert found is not None, result.output
    return found[1], found[3], found[2]


def ring(directory: Path) -> Keyring:
    return Keyring(directory / "keys.json", load_pepper(directory / "pepper"))


def test_a_key_is_created_listed_rotated_and_revoked_SEC_03(tmp_path: Path) -> None:
    secret, key_id, tenant = made(keys(tmp_path, "create", "--label", "ci"))
    assert tenant_of(ring(tmp_path), secret) == tenant
    listed = keys(tmp_path, "list")
    assert key_id in listed.output and tenant in listed.output and "active" in listed.output
    assert secret not in listed.output + (tmp_path / "keys.json").read_text()

    newer, newer_id, same = made(keys(tmp_path, "rotate", key_id))
    assert same == tenant and newer != secret
    assert tenant_of(ring(tmp_path), secret) == tenant_of(ring(tmp_path), newer) == tenant

    newest, _, _ = made(keys(tmp_path, "rotate", newer_id, "--grace", "0"))
    assert tenant_of(ring(tmp_path), newest) == tenant
    assert tenant_of(ring(tmp_path), newer) == ""

    assert keys(tmp_path, "revoke", key_id).exit_code == 0
    assert tenant_of(ring(tmp_path), secret) == ""
    assert "revoked" in keys(tmp_path, "list").output


def test_a_second_key_of_a_tenant_and_one_that_ends(tmp_path: Path) -> None:
    _, _, tenant = made(keys(tmp_path, "create"))
    secret, _, same = made(keys(tmp_path, "create", "--tenant", tenant, "--expires-days", "1"))
    assert same == tenant
    (ends,) = [entry.expires_ms for entry in ring(tmp_path).entries().values() if entry.expires_ms]
    assert ends > 0 and tenant_of(ring(tmp_path), secret) == tenant
    assert keys(tmp_path, "create", "--tenant", "nobody").exit_code == 1


@pytest.mark.parametrize("verb", ["rotate", "revoke"])
def test_an_unknown_key_is_refused_with_what_to_do(tmp_path: Path, verb: str) -> None:
    made(keys(tmp_path, "create"))
    refused = keys(tmp_path, verb, "key-000000000000")
    assert refused.exit_code == 1 and "key file" in refused.stderr


def test_a_revoked_key_is_not_rotated(tmp_path: Path) -> None:
    _, key_id, _ = made(keys(tmp_path, "create"))
    keys(tmp_path, "revoke", key_id)
    refused = keys(tmp_path, "rotate", key_id)
    assert refused.exit_code == 1 and "revoked" in refused.stderr


def test_tenants_need_a_running_mesh(tmp_path: Path) -> None:
    refused = runner.invoke(cli.app, ["tenants", "list", "--state-dir", str(tmp_path)])
    assert refused.exit_code == 1 and "--scheduler" in refused.stderr


def test_the_lock_tells_whether_a_mesh_runs(tmp_path: Path) -> None:
    from services.local.tenancy_client import is_running

    assert not is_running(tmp_path)
    with (tmp_path / "lock").open("w") as lock:
        assert not is_running(tmp_path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_running(tmp_path)
