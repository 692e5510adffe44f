"""The error tree of every service, with its one mapping to gRPC and HTTP.

    TinkermeshError
    ├── UserError                 the client must change something
    │   ├── InvalidInput          400  INVALID_ARGUMENT    a field has a wrong value
    │   │   ├── AdapterNotLoaded  400  INVALID_ARGUMENT    a prefill or decode sampler never loads within a request
    │   │   └── ContextExceeded   400  INVALID_ARGUMENT    a prompt and what is to follow do not fit the context
    │   ├── KeyConflict           400  INVALID_ARGUMENT    idempotency key used with another payload
    │   ├── ModelClosed           400  FAILED_PRECONDITION the model no longer takes commands
    │   ├── InUse                 400  FAILED_PRECONDITION held by queued or running work
    │   ├── UnknownId             400  NOT_FOUND           no such model, session, sampler
    │   ├── Unauthenticated       401  UNAUTHENTICATED
    │   ├── Forbidden             403  PERMISSION_DENIED   another tenant's
    │   ├── NotSupported          404  UNIMPLEMENTED       a route or feature this mesh lacks
    │   ├── MissingResource       404  NOT_FOUND           a checkpoint or run that is not there
    │   ├── Gone                  410  NOT_FOUND           expired or unknown future or session
    │   ├── TooLarge              413  RESOURCE_EXHAUSTED  a body above its limit
    │   └── Busy                  429  RESOURCE_EXHAUSTED  rate or occupancy; retry later
    └── ServerError               the mesh is at fault
        ├── Pending               408  FAILED_PRECONDITION the result is not there yet
        ├── StaleFence            503  ABORTED             older term or another incarnation
        ├── Unavailable           503  UNAVAILABLE         a part is away; retry
        │   ├── Stopping          503  UNAVAILABLE         it ends in order, and took nothing of this
        │   ├── CacheNotReady     503  UNAVAILABLE         blocks a decode sampler needs are not in the tier yet
        │   └── DecodeInterrupted 503  UNAVAILABLE         the decode leg broke off after output had been given
        ├── Interrupted           503  UNAVAILABLE         any other stream broke off after output had been given
        └── ContractViolation     500  INTERNAL            a peer broke its contract

`code` names the class on the wire between services, so a caller gets the same type back.
"""

from __future__ import annotations

from typing import ClassVar, cast

import grpc
from grpc import StatusCode

ERROR_CODE_KEY = "tinkermesh-error"


class TinkermeshError(Exception):
    """Base of all expected failures; `message` is safe to show to the tenant who caused it."""

    code: ClassVar[str] = "error"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[StatusCode] = StatusCode.INTERNAL

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UserError(TinkermeshError):
    code = "user"
    http_status = 400
    grpc_status = StatusCode.INVALID_ARGUMENT


class InvalidInput(UserError):
    code = "invalid_input"


class AdapterNotLoaded(InvalidInput):
    code = "adapter_not_loaded"


class ContextExceeded(InvalidInput):
    code = "context_length_exceeded"


class KeyConflict(UserError):
    code = "key_conflict"


class ModelClosed(UserError):
    code = "model_closed"
    grpc_status = StatusCode.FAILED_PRECONDITION


class InUse(UserError):
    code = "in_use"
    grpc_status = StatusCode.FAILED_PRECONDITION


class UnknownId(UserError):
    code = "unknown_id"
    grpc_status = StatusCode.NOT_FOUND


class Unauthenticated(UserError):
    code = "unauthenticated"
    http_status = 401
    grpc_status = StatusCode.UNAUTHENTICATED


class Forbidden(UserError):
    code = "forbidden"
    http_status = 403
    grpc_status = StatusCode.PERMISSION_DENIED


class NotSupported(UserError):
    code = "not_supported"
    http_status = 404
    grpc_status = StatusCode.UNIMPLEMENTED


class MissingResource(UserError):
    code = "missing_resource"
    http_status = 404
    grpc_status = StatusCode.NOT_FOUND


class Gone(UserError):
    code = "gone"
    http_status = 410
    grpc_status = StatusCode.NOT_FOUND


class TooLarge(UserError):
    code = "too_large"
    http_status = 413
    grpc_status = StatusCode.RESOURCE_EXHAUSTED


class Busy(UserError):
    code = "busy"
    http_status = 429
    grpc_status = StatusCode.RESOURCE_EXHAUSTED


class ServerError(TinkermeshError):
    code = "server"


class Pending(ServerError):
    code = "pending"
    http_status = 408
    grpc_status = StatusCode.FAILED_PRECONDITION


class StaleFence(ServerError):
    code = "stale_fence"
    http_status = 503
    grpc_status = StatusCode.ABORTED


class Unavailable(ServerError):
    code = "unavailable"
    http_status = 503
    grpc_status = StatusCode.UNAVAILABLE


class Stopping(Unavailable):
    code = "stopping"


class CacheNotReady(Unavailable):
    code = "cache_not_ready"


class DecodeInterrupted(Unavailable):
    code = "pd_decode_interrupted"


class Interrupted(ServerError):
    code = "stream_interrupted"
    http_status = 503
    grpc_status = StatusCode.UNAVAILABLE


class ContractViolation(ServerError):
    code = "contract_violation"


def _tree(base: type[TinkermeshError]) -> dict[str, type[TinkermeshError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE: dict[str, type[TinkermeshError]] = _tree(TinkermeshError)

_BY_STATUS: dict[StatusCode, type[TinkermeshError]] = {
    StatusCode.INVALID_ARGUMENT: InvalidInput,
    StatusCode.NOT_FOUND: UnknownId,
    StatusCode.PERMISSION_DENIED: Forbidden,
    StatusCode.UNAUTHENTICATED: Unauthenticated,
    StatusCode.RESOURCE_EXHAUSTED: Busy,
    StatusCode.FAILED_PRECONDITION: ServerError,
    StatusCode.UNIMPLEMENTED: ServerError,
    StatusCode.ABORTED: StaleFence,
    StatusCode.UNAVAILABLE: Unavailable,
    StatusCode.DEADLINE_EXCEEDED: Unavailable,
    StatusCode.CANCELLED: Unavailable,
}


def is_typed(error: grpc.aio.AioRpcError) -> bool:
    """Whether the peer itself answered with one of these, so that the text is its own; else the transport failed."""
    return any(key == ERROR_CODE_KEY for key, _ in _metadata(error))


def _metadata(error: grpc.aio.AioRpcError) -> tuple[tuple[str, str], ...]:
    return cast("tuple[tuple[str, str], ...]", error.trailing_metadata() or ())


def from_rpc_error(error: grpc.aio.AioRpcError) -> TinkermeshError:
    """The typed error a peer raised, or the closest type for a transport failure."""
    code = next((v for k, v in _metadata(error) if k == ERROR_CODE_KEY), "")
    kind = BY_CODE.get(code) or _BY_STATUS.get(error.code(), ServerError)
    return kind(error.details() or error.code().name)
