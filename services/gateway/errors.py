"""Expected failures as HTTP answers. Every answer has a JSON body; a 400 is never empty."""

from __future__ import annotations

from starlette.responses import Response

from services.common.errors import Busy, TinkermeshError, Unauthenticated, Unavailable, UserError
from services.gateway.http import json_response


class InvalidToken(Unauthenticated):
    """A JWT that is no good (any more): the SDK exchanges its key for another and repeats the request."""


def category_of(error: TinkermeshError) -> str:
    """``user`` or ``server``, as the SDK spells them."""
    return "user" if isinstance(error, UserError) else "server"


def error_body(error: TinkermeshError) -> dict[str, str]:
    """`detail` is what the SDK shows; `error` names the class."""
    return {"detail": error.message, "error": error.code, "category": category_of(error)}


def error_response(error: TinkermeshError) -> Response:
    response = json_response(error_body(error), error.http_status)
    response.headers.update(error_headers(error))
    return response


def error_headers(error: TinkermeshError) -> dict[str, str]:
    if isinstance(error, (Busy, Unavailable)):
        return {"retry-after": "1"}
    if isinstance(error, Unauthenticated):
        problem = ' error="invalid_token"' if isinstance(error, InvalidToken) else ""
        return {"www-authenticate": f"Bearer{problem}"}
    return {}


def internal_error_response() -> Response:
    """For bugs: the text stays in the log."""
    body = {"detail": "internal error; the gateway's log has the cause", "error": "internal", "category": "server"}
    return json_response(body, 500)
