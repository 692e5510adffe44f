"""One line per admission decision: what was asked, by which key, and what became of it.

Polls, heartbeats and reads that were answered leave no line; every refusal does. A line's texts are
bounded, and nothing that looks like a credential is written, also when a client put one where an id
belongs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.common import logs
from services.common.audit import AUDIT
from services.common.errors import Busy, Forbidden, InUse, ServerError, TinkermeshError, Unauthenticated

LONGEST_REASON = 200
_CREDENTIAL = re.compile(r"(tml-|eyJ)[A-Za-z0-9_.\-]+")
# Their texts are this mesh's own; others may quote what a client sent.
_QUOTED = (Busy, Forbidden, InUse, ServerError, Unauthenticated)


@dataclass(slots=True)
class Decision:
    """What is known of a request when it is decided."""

    route: str
    tenant: str = ""
    key_id: str = ""
    label: str = ""
    op: str = ""
    request_id: str = ""
    model_id: str = ""
    rejected: bool = False  # admitted, to fail in its turn


def admitted(decision: Decision) -> None:
    _write(decision, "admitted", "content is invalid: it fails in its turn" if decision.rejected else "")


def refused(decision: Decision, error: TinkermeshError) -> None:
    reason = f"{error.code}: {error.message}" if isinstance(error, _QUOTED) else error.code
    _write(decision, "unavailable" if isinstance(error, ServerError) else "refused", reason)


def _write(decision: Decision, said: str, reason: str) -> None:
    fields = {
        "decision": said,
        "route": decision.route,
        "tenant": decision.tenant,
        "key": decision.key_id,
        "label": decision.label,
        "op": decision.op,
        "request_id": decision.request_id,
        "model_id": decision.model_id,
        "reason": _CREDENTIAL.sub(r"\1…", reason)[:LONGEST_REASON],
    }
    known = {name: value for name, value in fields.items() if value}
    with logs.bind(tenant_id=decision.tenant):  # by its name in every other line about this request
        AUDIT.info("%s %s", said, decision.route, extra={"fields": known})
