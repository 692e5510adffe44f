"""Which mesh a command means: the one on a state directory, or one that is named by its addresses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from services.common.errors import Unauthenticated, Unavailable
from services.local import endpoints
from services.local.gateway_client import PREFIX, GatewayClient
from services.local.settings import default_state_dir
from services.local.state import DEFAULT_KEY
from services.local.tenancy_client import is_running

BASE_URL = "TINKER_BASE_URL"
API_KEY = "TINKER_API_KEY"

UrlOption = Annotated[
    str,
    typer.Option(
        help=f"Gateway, as clients have it in ${BASE_URL}; default: the mesh on --state-dir, else that variable. "
        f"The key is ${API_KEY}, on this machine's own mesh its local key"
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]


def directory(state_dir: Path | None) -> Path:
    return (state_dir or default_state_dir()).expanduser()


def gateway_url(state_dir: Path | None, url: str) -> str:
    """Raises Unavailable when no mesh is named and none runs here."""
    if url:
        return url
    chosen = os.environ.get(BASE_URL, "")
    if chosen and state_dir is None:
        return chosen
    found = local_mesh(directory(state_dir))
    if found is None:
        where = directory(state_dir)
        raise Unavailable(f"no mesh runs on {where}; start it, or name a gateway with --url or ${BASE_URL}")
    return found.base_url


def api_key(url: str, state_dir: Path | None) -> str:
    """$TINKER_API_KEY, or the local key where the mesh is this machine's own. Raises Unauthenticated without any."""
    if chosen := os.environ.get(API_KEY, ""):
        return chosen
    found = local_mesh(directory(state_dir))
    if found is not None and found.base_url == url:
        return DEFAULT_KEY
    raise Unauthenticated(f"set ${API_KEY} to a key of the mesh at {url}; tinkermesh keys create makes one")


def local_mesh(where: Path) -> endpoints.Endpoints | None:
    """The mesh that runs on `where` now."""
    return endpoints.read(where) if is_running(where) else None


@contextmanager
def gateway(
    state_dir: Path | None, url: str, *, prefix: str = PREFIX, timeout_seconds: float = 60.0
) -> Iterator[GatewayClient]:
    """Raises Unavailable, Unauthenticated, InvalidInput."""
    chosen = gateway_url(state_dir, url)
    client = GatewayClient(chosen, api_key(chosen, state_dir), timeout_seconds, prefix)
    try:
        yield client
    finally:
        client.close()
