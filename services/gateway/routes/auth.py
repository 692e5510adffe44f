"""The caller's own credential: a short-lived token for its key, what the key is, and its end."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from services.common.errors import InvalidInput, NotSupported
from services.common.keyring import KEY_ID_PREFIX
from services.gateway.endpoint import Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.wire.bodies import Nothing


def routes(gateway: Gateway) -> list[Route]:
    return [
        endpoint(gateway, "/auth/token", token),
        endpoint(gateway, "/auth/apikey/me", own_key, ("GET",)),
        endpoint(gateway, "/auth/apikey/me", delete_own_key, ("DELETE",)),
    ]


async def token(call: Call) -> Response:
    """A JWT for the key; for a JWT, one that ends no later."""
    await call.json(Nothing)
    tokens = call.gateway.tokens
    if tokens is None:
        raise NotSupported("auth/token is off in this mesh: send the API key itself (gateway setting jwt_auth)")
    caller = call.caller
    return json_response({"jwt": tokens.issue(caller.tenant, caller.key_id, caller.label, caller.token_ends)})


async def own_key(call: Call) -> Response:
    caller = call.caller
    answer: dict[str, Any] = {
        "key_id": _number(caller.key_id),
        "name": caller.label or caller.key_id,
        "note": f"{caller.key_id} of tenant {caller.tenant}",
        "details": {"org_details": {"name": caller.tenant}, "user_details": {"email": ""}},
    }
    return json_response(answer)


async def delete_own_key(call: Call) -> Response:
    """The key that is presented, and no other."""
    caller = call.caller
    if caller.token_ends:
        raise InvalidInput("send the API key itself to delete it, not a token made from it")
    await call.gateway.tenants.revoke(caller.key_id)
    call.gateway.auth.forget(caller.key_id, call.request.headers)
    return Response(status_code=204)


def _number(key_id: str) -> int:
    """The SDK's model of a key has a number for its id."""
    return int(key_id.removeprefix(KEY_ID_PREFIX), 16)
