"""Keys and tenants from the command line: of a running mesh by RPC, of one that is down in its key file."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import grpc
from tinkermesh.v1 import tenants_pb2 as pb
from tinkermesh.v1.tenants_pb2_grpc import TenantsStub

from services.common.clock import now_ms
from services.common.errors import InvalidInput, Unavailable, UnknownId, from_rpc_error
from services.common.grpc_channel import blocking_channel
from services.common.key_reports import key_report
from services.common.keyring import Keyring, digest, load_pepper, new_secret

CALL_SECONDS = 10.0


class RunningKeys:
    """A mesh that is up: one of its schedulers."""

    def __init__(self, stub: TenantsStub) -> None:
        self._stub: Any = stub

    def create(self, tenant: str, label: str, expires_seconds: int) -> pb.NewKey:
        request = pb.CreateKeyRequest(tenant_id=tenant, label=label, expires_seconds=expires_seconds)
        return cast("pb.NewKey", self._call("CreateKey", request))

    def rotate(self, wanted: str, grace_seconds: int, expires_seconds: int) -> pb.NewKey:
        request = pb.RotateKeyRequest(key_id=wanted, grace_seconds=grace_seconds, expires_seconds=expires_seconds)
        return cast("pb.NewKey", self._call("RotateKey", request))

    def revoke(self, wanted: str) -> pb.KeyReport:
        return cast("pb.KeyReport", self._call("RevokeKey", pb.RevokeKeyRequest(key_id=wanted)))

    def keys(self, tenant: str) -> list[pb.KeyReport]:
        return list(self._call("ListKeys", pb.ListKeysRequest(tenant_id=tenant)).keys)

    def tenants(self) -> list[pb.TenantReport]:
        return list(self._call("ListTenants", pb.ListTenantsRequest(limit=10_000)).tenants)

    def tenant(self, tenant: str) -> pb.TenantReport:
        return cast("pb.TenantReport", self._call("GetTenant", pb.GetTenantRequest(tenant_id=tenant)))

    def set_tenant(self, request: pb.SetTenantRequest) -> pb.TenantReport:
        return cast("pb.TenantReport", self._call("SetTenant", request))

    def _call(self, name: str, request: Any) -> Any:
        """Raises the scheduler's own error."""
        try:
            return getattr(self._stub, name)(request, timeout=CALL_SECONDS, wait_for_ready=True)
        except grpc.RpcError as error:
            raise from_rpc_error(cast("grpc.aio.AioRpcError", error)) from error


class FileKeys:
    """A mesh that is down: what it will start with."""

    def __init__(self, ring: Keyring, pepper: bytes) -> None:
        self._ring = ring
        self._pepper = pepper

    def create(self, tenant: str, label: str, expires_seconds: int) -> pb.NewKey:
        if tenant and tenant not in self._ring.tenants():
            raise InvalidInput(f"--tenant: {tenant!r} is not a tenant here; tinkermesh keys list shows them")
        secret = new_secret()
        expires = now_ms() + 1000 * expires_seconds if expires_seconds else 0
        self._ring.add(secret, tenant_id=tenant, label=label, expires_ms=expires)
        return pb.NewKey(secret=secret, key=self._report(digest(self._pepper, secret)))

    def rotate(self, wanted: str, grace_seconds: int, expires_seconds: int) -> pb.NewKey:
        found = self._found(wanted)
        old = self._ring.entries()[found]
        if (state := old.state(now_ms())) != "active":
            raise InvalidInput(f"key {wanted} is {state}; create a new one for tenant {old.tenant_id}")
        made = self.create(old.tenant_id, old.label, expires_seconds)
        now = now_ms()
        self._ring.change(
            found,
            lambda held: (
                (held or old).ending(now + 1000 * grace_seconds) if grace_seconds else (held or old).revoked(now)
            ),
        )
        return made

    def revoke(self, wanted: str) -> pb.KeyReport:
        found = self._found(wanted)
        entry = self._ring.entries()[found]
        self._ring.change(found, lambda held: (held or entry).revoked(now_ms()))
        return self._report(found)

    def keys(self, tenant: str) -> list[pb.KeyReport]:
        entries = self._ring.entries()
        return [self._report(found) for found, entry in entries.items() if tenant in ("", entry.tenant_id)]

    def _found(self, wanted: str) -> str:
        found = self._ring.digest_of(wanted)
        if not found:
            raise UnknownId(f"key {wanted[:64]!r} is not in the key file; keys made while the mesh ran need it running")
        return found

    def _report(self, found: str) -> pb.KeyReport:
        return key_report(found, self._ring.entries()[found], "file")


@contextmanager
def keys_of(state_dir: Path, scheduler: str) -> Iterator[RunningKeys | FileKeys]:
    """`scheduler`: host:port of a running mesh; "" = the mesh on `state_dir`, up or down."""
    if scheduler or is_running(state_dir):
        with running(state_dir, scheduler) as keys:
            yield keys
        return
    pepper = load_pepper(state_dir / "pepper", create=True)
    yield FileKeys(Keyring(state_dir / "keys.json", pepper), pepper)


@contextmanager
def running(state_dir: Path, scheduler: str) -> Iterator[RunningKeys]:
    """Raises Unavailable when no mesh runs there."""
    address = scheduler or scheduler_of(state_dir)
    with blocking_channel(address) as channel:
        yield RunningKeys(TenantsStub(channel))


def is_running(state_dir: Path) -> bool:
    """Whether a mesh holds the state directory's lock."""
    try:
        with (state_dir / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def scheduler_of(state_dir: Path) -> str:
    """host:port of the first scheduler of the mesh that runs on `state_dir`. Raises Unavailable when none does."""
    port_file = state_dir / "run" / "scheduler-0.port"
    if not is_running(state_dir) or not port_file.is_file():
        raise Unavailable(f"no mesh runs on {state_dir}; start it, or name a scheduler with --scheduler host:port")
    return f"127.0.0.1:{int(port_file.read_text())}"
