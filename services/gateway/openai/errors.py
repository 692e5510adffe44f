"""Failures in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import re
from typing import Any

from starlette.responses import Response

from services.common.errors import (
    Busy,
    ContextExceeded,
    Forbidden,
    InvalidInput,
    MissingResource,
    NotSupported,
    TinkermeshError,
    TooLarge,
    Unauthenticated,
    UserError,
)
from services.gateway.errors import error_headers
from services.gateway.http import json_response
from services.gateway.openai.bodies import FIELDS

_INVALID = "invalid_request_error"
# What the official client's own users look at; other classes are told by their own code.
_FORMS: dict[type[TinkermeshError], tuple[str, str]] = {
    Unauthenticated: (_INVALID, "invalid_api_key"),
    Forbidden: ("permission_error", "forbidden"),
    NotSupported: (_INVALID, "unknown_url"),
    MissingResource: (_INVALID, "model_not_found"),
    TooLarge: (_INVALID, "request_too_large"),
    Busy: ("rate_limit_error", "rate_limit_exceeded"),
    ContextExceeded: (_INVALID, "context_length_exceeded"),
}
_NAMED = re.compile(r"([a-z_]+)[\[.: ]")
_IN_BODY = re.compile(r"(?:at `\$\.|unknown field `|required field `)([A-Za-z0-9_]+)")


def error_object(error: TinkermeshError) -> dict[str, Any]:
    """What stands under ``error``; `param` is the field the message names."""
    kind = type(error)
    if kind in _FORMS:
        form, code = _FORMS[kind]
    elif isinstance(error, UserError):
        form, code = _INVALID, "invalid_value" if kind is InvalidInput else error.code
    else:
        form, code = "server_error", error.code
    return {"message": error.message, "type": form, "param": param_of(error), "code": code}


def param_of(error: TinkermeshError) -> str | None:
    """The request's field that is at fault, if the message names one."""
    if isinstance(error, MissingResource):
        return "model"
    if not isinstance(error, UserError):
        return None
    if found := _IN_BODY.search(error.message):
        return found[1]
    found = _NAMED.match(error.message)
    return found[1] if found and found[1] in FIELDS else None


def error_response(error: TinkermeshError) -> Response:
    response = json_response({"error": error_object(error)}, error.http_status)
    response.headers.update(error_headers(error))
    return response


def internal_error_response() -> Response:
    """For bugs: the text stays in the log."""
    return json_response({"error": INTERNAL}, 500)


INTERNAL: dict[str, Any] = {
    "message": "internal error; the gateway's log has the cause",
    "type": "server_error",
    "param": None,
    "code": "internal",
}
