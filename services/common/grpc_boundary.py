"""The one place where exceptions of a service become gRPC statuses.

TinkermeshErrors keep their class through a trailing-metadata code; anything else is a bug:
it is logged with its traceback and answered as INTERNAL without its text.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import grpc
from grpc import StatusCode

from services.common.errors import ERROR_CODE_KEY, TinkermeshError
from services.common.metrics import grpc_call

log = logging.getLogger(__name__)

_INTERNAL = "internal"

if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]
    Context = grpc.aio.ServicerContext[Any, Any]
    Interceptor = grpc.aio.ServerInterceptor[Any, Any]
else:  # grpc's classes are generic in the stubs only
    Handler = grpc.RpcMethodHandler
    Context = grpc.aio.ServicerContext
    Interceptor = grpc.aio.ServerInterceptor


async def abort_with(context: Context, error: TinkermeshError) -> None:
    await context.abort(error.grpc_status, error.message, ((ERROR_CODE_KEY, error.code),))


async def _abort_unexpected(context: Context, method: str) -> None:
    log.exception("unexpected error in %s", method)
    await context.abort(StatusCode.INTERNAL, f"internal error in {method}; the service's log has the cause")


def _everyone(context: Context) -> None:
    """Admits the caller."""


class ErrorBoundary(Interceptor):
    """Wraps every handler of a grpc.aio server; `admit` raises for a caller that may not call it."""

    def __init__(self, admit: Callable[[Context], None] = _everyone) -> None:
        self._admit = admit

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        method = handler_call_details.method
        behaviour = _behaviour(handler)
        # A streaming handler may also be a coroutine that writes to its context, as Health.Watch is.
        guard = _guard_stream if inspect.isasyncgenfunction(behaviour) else _guard_unary
        return _rebuild(handler, guard(behaviour, method, self._admit))


def _behaviour(handler: Handler) -> Callable[[Any, Context], Any]:
    behaviours = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    found: Any = next(b for b in behaviours if b is not None)
    return cast("Callable[[Any, Context], Any]", found)


def _rebuild(handler: Handler, behaviour: Callable[[Any, Context], Any]) -> Handler:
    makers: dict[tuple[bool, bool], Callable[..., Handler]] = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = makers[(bool(handler.request_streaming), bool(handler.response_streaming))]
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


Behaviour = Callable[[Any, Context], Any]


@asynccontextmanager
async def _answering(context: Context, method: str, *, stream: bool) -> AsyncIterator[None]:
    """Counts the call, and answers with a status where the block fails."""
    with grpc_call(method, time.monotonic, stream=stream) as answered:
        try:
            yield
        except TinkermeshError as error:
            answered.code = error.code
            await abort_with(context, error)
        except grpc.aio.AbortError:
            raise
        except Exception:  # noqa: BLE001 - the process boundary
            answered.code = _INTERNAL
            await _abort_unexpected(context, method)


def _guard_unary(behaviour: Behaviour, method: str, admit: Callable[[Context], None]) -> Behaviour:
    async def call(request: Any, context: Context) -> Any:
        async with _answering(context, method, stream=False):
            admit(context)
            return await behaviour(request, context)

    return call


def _guard_stream(behaviour: Behaviour, method: str, admit: Callable[[Context], None]) -> Behaviour:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        async with _answering(context, method, stream=True):
            admit(context)
            async for message in behaviour(request, context):
                yield message

    return call
