"""A gateway as the operator's commands ask it: HTTP and JSON over one connection that stays open."""

from __future__ import annotations

import http.client
import json
import uuid
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from services.common.errors import (
    Busy,
    ContractViolation,
    Forbidden,
    Gone,
    InvalidInput,
    MissingResource,
    Pending,
    TinkermeshError,
    Unauthenticated,
    Unavailable,
)

PREFIX = "/api/v1"
LARGEST_ANSWER = 64 << 20
_BY_STATUS: dict[int, type[TinkermeshError]] = {
    HTTPStatus.UNAUTHORIZED: Unauthenticated,
    HTTPStatus.FORBIDDEN: Forbidden,
    HTTPStatus.NOT_FOUND: MissingResource,
    HTTPStatus.REQUEST_TIMEOUT: Pending,
    HTTPStatus.GONE: Gone,
    HTTPStatus.TOO_MANY_REQUESTS: Busy,
}


class GatewayClient:
    """For one thread. `base_url` is what clients have as TINKER_BASE_URL."""

    def __init__(self, base_url: str, key: str, timeout_seconds: float = 60.0, prefix: str = PREFIX) -> None:
        """Raises InvalidInput when `base_url` is no http or https address."""
        try:
            parts = urlsplit(base_url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise InvalidInput(f"--url: {base_url[:200]!r}: {error}") from error
        if parts.scheme not in ("http", "https") or not host:
            raise InvalidInput(f"--url: {base_url[:200]!r} is not http://host:port or https://host:port")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.base_url = base_url
        self._connection = kind(host, port, timeout=timeout_seconds)
        self._path = parts.path.rstrip("/") + prefix
        self._headers = {"Content-Type": "application/json", **({"X-API-Key": key} if key else {})}

    def get(self, path: str) -> Any:
        """The answer's JSON. Raises the error that its status stands for, Unavailable when nobody answers."""
        return self.checked(*self.request("GET", path))

    def post(self, path: str, body: Any) -> Any:
        """The same; every POST carries a key of its own, so one that is sent again takes effect once."""
        return self.checked(*self.request("POST", path, body))

    def delete(self, path: str) -> None:
        """Raises as `get`."""
        self.checked(*self.request("DELETE", path))

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """HTTP status and decoded body, None for an empty one. Raises Unavailable when nobody answers."""
        headers = self._headers | ({"X-Idempotency-Key": str(uuid.uuid4())} if method == "POST" else {})
        data = None if body is None else json.dumps(body).encode()
        try:
            return self._once(method, path, data, headers)
        except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
            self.close()  # the server has closed a connection that was idle
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error
        try:
            return self._once(method, path, data, headers)
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _once(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
        self._connection.request(method, f"{self._path}/{path}", data, headers)
        answer = self._connection.getresponse()
        content = answer.read(LARGEST_ANSWER)
        if answer.length:
            self.close()
            raise ContractViolation(f"{path}: the answer is longer than {LARGEST_ANSWER >> 20} MiB")
        try:
            return answer.status, json.loads(content) if content else None
        except ValueError:
            return answer.status, content[:300].decode(errors="replace")

    def _away(self, error: Exception) -> Unavailable:
        self.close()
        return Unavailable(f"the gateway at {self.base_url} does not answer: {error or type(error).__name__}")

    def checked(self, status: int, body: Any) -> Any:
        """`body`, or the error that `status` stands for."""
        if status < HTTPStatus.BAD_REQUEST:
            return body
        detail = body.get("detail") if isinstance(body, dict) else body
        kind = _BY_STATUS.get(status) or (Unavailable if status >= HTTPStatus.INTERNAL_SERVER_ERROR else InvalidInput)
        raise kind(str(detail or f"HTTP {status}"))

    def close(self) -> None:
        self._connection.close()
