"""`tinkermesh keys` and `tinkermesh tenants`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text
from tinkermesh.v1 import tenants_pb2 as pb

from services.common.errors import InvalidInput
from services.local.console import StateOption, console, explained
from services.local.settings import default_state_dir
from services.local.state import keyring
from services.local.tenancy_client import FileKeys, RunningKeys, keys_of, running

keys_app = typer.Typer(help="API keys of a mesh, running or not.", no_args_is_help=True)
tenants_app = typer.Typer(help="Tenants of a running mesh: shares, quotas, usage.", no_args_is_help=True)

DAY = 86_400
LONGEST_KEY = 512
QUOTAS = tuple(field.name for field in pb.Quotas.DESCRIPTOR.fields)

SchedulerOption = Annotated[
    str, typer.Option(envvar="TINKERMESH_SCHEDULER", help="host:port of a scheduler; default: the mesh on --state-dir")
]
TenantOption = Annotated[str, typer.Option(help="Tenant id the key belongs to; default: a new tenant")]
LabelOption = Annotated[str, typer.Option(help="A note for yourself")]
ExpiresOption = Annotated[float, typer.Option(min=0, help="Days until the new key ends; 0 = never")]
KeyIdArgument = Annotated[str, typer.Argument(help="Id as keys list shows it")]
TenantArgument = Annotated[str, typer.Argument(help="Id as tenants list shows it")]


@keys_app.command("create")
def create_key(
    label: LabelOption = "",
    tenant: TenantOption = "",
    expires_days: ExpiresOption = 0.0,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Make a new API key; it is shown once and stored only as a keyed digest."""
    with _keys(state_dir, scheduler) as keys:
        _show_new(keys.create(tenant, label, int(expires_days * DAY)))


@keys_app.command("add")
def add_key(
    label: LabelOption = "",
    tenant: TenantOption = "",
    key: Annotated[str, typer.Option(help="'-': the key itself is read from stdin; default: a new random one")] = "",
    state_dir: StateOption = None,
) -> None:
    """Put a key of your choice into the key file of the mesh on this state directory."""
    if not key:
        create_key(label, tenant, 0.0, state_dir, "")
        return
    with explained():
        key = _key_from_stdin(key)
        directory = _directory(state_dir)
        ring = keyring(directory / "keys.json", directory / "pepper")
        if tenant and tenant not in ring.tenants():
            raise InvalidInput(f"--tenant: {tenant!r} is not a tenant here; tinkermesh keys list shows them")
        _print(f"key     {key}\ntenant  {ring.add(key, tenant_id=tenant, label=label)}")


def _key_from_stdin(option: str) -> str:
    """A command line is open to everybody on the machine, and stays in the shell's history. Raises InvalidInput."""
    if option != "-":
        raise InvalidInput("--key: a key on the command line is seen by others; use --key - and send it to stdin")
    return sys.stdin.readline(LONGEST_KEY + 2).strip()


@keys_app.command("list")
def list_keys(
    tenant: Annotated[str, typer.Option(help="Of this tenant only")] = "",
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Ids, tenants and labels; the keys themselves are not kept anywhere."""
    with explained():
        file = _directory(state_dir) / "keys.json"
        if not scheduler and not file.exists():
            raise InvalidInput(f"--state-dir: no keys under {file.parent}; run tinkermesh up or keys create first")
    with _keys(state_dir, scheduler) as keys:
        table = _table("key", "tenant", "label", "state", "ends")
        for key in keys.keys(tenant):
            ends = _time(key.revoked_unix_ms or key.expires_unix_ms)
            table.add_row(key.key_id, key.tenant_id, Text(key.label), key.state, ends)
        console.print(table)


@keys_app.command("rotate")
def rotate_key(
    key_id: KeyIdArgument,
    grace: Annotated[float, typer.Option(min=0, help="Hours the old key still works; 0 = it ends now")] = 24.0,
    expires_days: ExpiresOption = 0.0,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """A new key of the same tenant; the old one ends after a while."""
    with _keys(state_dir, scheduler) as keys:
        _show_new(keys.rotate(key_id, int(grace * 3600), int(expires_days * DAY)))
        _print(f"The old key {key_id} " + (f"works for {grace:g} more hours." if grace else "is revoked."), "dim")


@keys_app.command("revoke")
def revoke_key(key_id: KeyIdArgument, state_dir: StateOption = None, scheduler: SchedulerOption = "") -> None:
    """Refuse a key from now on; what its tenant has running goes on."""
    with _keys(state_dir, scheduler) as keys:
        key = keys.revoke(key_id)
        _print(f"{key.key_id} of tenant {key.tenant_id} is {key.state}; gateways refuse it within three seconds")


@tenants_app.command("list")
def list_tenants(state_dir: StateOption = None, scheduler: SchedulerOption = "") -> None:
    """Everyone with a key, their weights, and the quotas set for them alone."""
    with _mesh(state_dir, scheduler) as mesh:
        table = _table("tenant", "name", "weight", "keys", "own quotas")
        for tenant in mesh.tenants():
            own = ", ".join(f"{name}={value:g}" for name, value in _given(tenant.overrides))
            table.add_row(tenant.tenant_id, Text(tenant.name), f"{tenant.weight:g}", str(tenant.active_keys), own)
        console.print(table)


@tenants_app.command("show")
def show_tenant(tenant_id: TenantArgument, state_dir: StateOption = None, scheduler: SchedulerOption = "") -> None:
    """What a tenant may use and uses now."""
    with _mesh(state_dir, scheduler) as mesh:
        _show_tenant(mesh.tenant(tenant_id))


@tenants_app.command("set")
def set_tenant(
    tenant_id: TenantArgument,
    name: Annotated[str | None, typer.Option(help="A name for yourself")] = None,
    weight: Annotated[float | None, typer.Option(help="Share of the turns where tenants compete")] = None,
    sessions: Annotated[int | None, typer.Option(min=0, help="Open sessions; 0 = no limit, here and below")] = None,
    models: Annotated[int | None, typer.Option(min=0, help="Live models")] = None,
    queued_bytes: Annotated[int | None, typer.Option(min=0, help="Payloads of unsettled commands")] = None,
    open_futures: Annotated[int | None, typer.Option(min=0, help="Unsettled commands and samples")] = None,
    samples: Annotated[int | None, typer.Option(min=0, help="Unsettled samples; the SDK keeps 2,048")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=0, help="Trained, scored, asked to be sampled")] = None,
    requests_per_second: Annotated[float | None, typer.Option(min=0, help="Accepted commands and samples")] = None,
    result_bytes: Annotated[int | None, typer.Option(min=0, help="Results that are kept")] = None,
    sequence_bytes: Annotated[int | None, typer.Option(min=0, help="Recorded sequences that are kept")] = None,
    job_tasks: Annotated[int | None, typer.Option(min=0, help="Tasks of jobs that are not settled")] = None,
    reset: Annotated[list[str] | None, typer.Option(help="A quota that follows the mesh's default again")] = None,
    state_dir: StateOption = None,
    scheduler: SchedulerOption = "",
) -> None:
    """Change a tenant; what is not named stays as it is. In force within a second."""
    quotas = pb.Quotas(
        sessions=sessions,
        models=models,
        queued_bytes=queued_bytes,
        open_futures=open_futures,
        samples=samples,
        tokens_per_minute=tokens_per_minute,
        requests_per_second=requests_per_second,
        result_bytes=result_bytes,
        sequence_bytes=sequence_bytes,
        job_tasks=job_tasks,
    )
    change = pb.SetTenantRequest(tenant_id=tenant_id, name=name, weight=weight, quotas=quotas, reset=reset or [])
    with _mesh(state_dir, scheduler) as mesh:
        _show_tenant(mesh.set_tenant(change))


@contextmanager
def _keys(state_dir: Path | None, scheduler: str) -> Iterator[RunningKeys | FileKeys]:
    with explained(), keys_of(_directory(state_dir), scheduler) as keys:
        yield keys


@contextmanager
def _mesh(state_dir: Path | None, scheduler: str) -> Iterator[RunningKeys]:
    with explained(), running(_directory(state_dir), scheduler) as mesh:
        yield mesh


def _directory(state_dir: Path | None) -> Path:
    return (state_dir or default_state_dir()).expanduser()


def _print(text: str, style: str = "") -> None:
    console.print(text, highlight=False, soft_wrap=True, markup=False, style=style or None)


def _show_new(made: pb.NewKey) -> None:
    _print(f"key     {made.secret}\ntenant  {made.key.tenant_id}\nid      {made.key.key_id}")
    _print("Keep the key: it is not shown again.", "dim")


def _show_tenant(tenant: pb.TenantReport) -> None:
    _print(f"tenant  {tenant.tenant_id}  {tenant.name}\nweight  {tenant.weight:g}\nkeys    {tenant.active_keys} active")
    own = dict(_given(tenant.overrides))
    table = Table("quota", "limit", "used")
    for name, limit in _given(tenant.quotas):
        used = f"{tenant.sessions}" if name == "sessions" else _used(tenant, name)
        table.add_row(name, f"{limit:,g}{' (own)' if name in own else ''}" if limit else "none", used)
    console.print(table)


def _used(tenant: pb.TenantReport, quota: str) -> str:
    """Per pool, or what is left of a bucket."""
    left = {"tokens_per_minute": "tokens_left", "requests_per_second": "requests_left"}.get(quota)
    if left is None:
        return ", ".join(f"{getattr(usage, quota):,} ({usage.pool})" for usage in tenant.usage)
    known = [usage for usage in tenant.usage if usage.HasField(left)]  # type: ignore[arg-type]
    return ", ".join(f"{getattr(usage, left):,.0f} left ({usage.pool})" for usage in known)


def _given(quotas: pb.Quotas) -> list[tuple[str, float]]:
    return [(name, float(getattr(quotas, name))) for name in QUOTAS if quotas.HasField(name)]  # type: ignore[arg-type]


def _table(*columns: str) -> Table:
    """Ids are never cut."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column in ("key", "tenant", "state"), overflow="fold")
    return table


def _time(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M") if unix_ms else ""
