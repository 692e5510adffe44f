"""gRPC target of the scheduler replicas."""

from __future__ import annotations

import ipaddress
import socket

from services.common.errors import InvalidInput


def scheduler_target(addresses: str) -> str:
    """``h1:p1,h2:p2`` as one target over which calls go round; a gRPC target stays as it is.

    A single host name is left to gRPC's own resolver, so that new replicas behind it are found.
    Raises InvalidInput for an address without a port or a name that does not resolve.
    """
    if "://" in addresses or addresses.startswith(("ipv4:", "ipv6:", "unix:", "dns:")):
        return addresses
    parts = [part.strip() for part in addresses.split(",") if part.strip()]
    if not parts or any(not part.rpartition(":")[2].isdigit() or not part.rpartition(":")[0] for part in parts):
        raise InvalidInput(f"settings of gateway: scheduler {addresses!r} is not host:port[,host:port...]")
    if len(parts) == 1 and not _is_ipv4(parts[0]):
        return f"dns:///{parts[0]}"
    return "ipv4:" + ",".join(_resolve(part) for part in parts)


def _is_ipv4(address: str) -> bool:
    try:
        ipaddress.IPv4Address(address.rpartition(":")[0])
    except ValueError:
        return False
    return True


def _resolve(address: str) -> str:
    if _is_ipv4(address):
        return address
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host, int(port), socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidInput(f"settings of gateway: scheduler host {host!r} does not resolve: {error}") from error
    return f"{found[0][4][0]}:{port}"
