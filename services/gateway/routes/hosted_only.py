"""What the SDK can ask of the hosted service and a mesh of one's own has no use for: 404, with a reason."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.routing import Route

from services.common.errors import NotSupported
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway

_BILLING = "this mesh does not bill; its operator sees usage in the metrics"
_REASONS = (
    ("GET", "/audit", "audit lines go to the operator's log, not to clients"),
    ("GET", "/billing/usage/events", _BILLING),
    ("GET", "/billing/usage/checkpoints/current", f"{_BILLING}; GET /api/v1/checkpoints lists sizes"),
    ("GET", "/sessions/{session_id}/trace_export", "traces go to the operator's OpenTelemetry collector"),
    ("POST", "/create_custom_loss", "custom losses run in the client (forward_backward_custom), which every SDK can"),
)


def routes(gateway: Gateway) -> list[Route]:
    return [endpoint(gateway, path, _refusing(path, reason), (method,)) for method, path, reason in _REASONS]


def _refusing(path: str, reason: str) -> Callable[[Call], Awaitable[Response]]:
    async def refuse(call: Call) -> Response:
        raise NotSupported(f"{path} is not supported by this mesh: {reason}")

    return refuse
