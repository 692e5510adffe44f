"""Whom a key file admits, read as a gateway reads it."""

from __future__ import annotations

from services.common.clock import now_ms
from services.common.keyring import Keyring, digest, peppers_of


def tenant_of(ring: Keyring, key: str) -> str:
    """The tenant behind an active `key`, "" when there is none."""
    entries = (ring.find(digest(pepper, key)) for pepper in peppers_of(ring._pepper))
    found = next((entry for entry in entries if entry is not None), None)
    return found.tenant_id if found is not None and found.state(now_ms()) == "active" else ""
