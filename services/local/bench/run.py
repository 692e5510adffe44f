"""The measurement: clients side by side in threads, first training, then sampling."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from threading import Event
from typing import TypeVar

import msgspec

from services.common.errors import InvalidInput, TinkermeshError, Unavailable
from services.local.bench.client import Client, Load, OperationFailed
from services.local.bench.figures import Figure, Timed, figure
from services.local.gateway_client import GatewayClient

T = TypeVar("T")
Connect = Callable[[], GatewayClient]


class Measured(msgspec.Struct, frozen=True):
    """`refused`: answers of 429 and 503, after which a client waited a second and sent again."""

    url: str
    load: Load
    figures: list[Figure]
    refused: int


def choose_model(gateway: GatewayClient, wanted: str, tokens: int) -> tuple[str, bool]:
    """(name, whether it can be sampled). Raises InvalidInput, Unavailable and what the gateway answers."""
    models = gateway.get("get_server_capabilities")["supported_models"]
    names = ", ".join(one["model_name"] for one in models)
    found = next((one for one in models if wanted in ("", one["model_name"]) and one["trainable"]), None)
    if found is None and wanted:
        raise InvalidInput(f"--model: {wanted!r} cannot be trained here now; there are: {names or 'none'}")
    if found is None:
        raise Unavailable("no model can be trained now; tinkermesh doctor says why")
    if tokens > found["max_context_length"]:
        raise InvalidInput(
            f"--tokens: {tokens} exceed the {found['max_context_length']} that {found['model_name']} takes"
        )
    return str(found["model_name"]), bool(found["sampleable"])


def measure(connect: Connect, load: Load) -> Measured:
    """Raises the first client's error when one cannot even begin; what fails later is counted."""
    head, stop = connect(), Event()
    body = {"tags": ["tinkermesh-bench"], "sdk_version": "0.38.0"}
    session = str(head.post("create_session", body)["session_id"])
    clients = [Client(connect(), load, session, number, stop) for number in range(load.clients)]
    try:
        with ThreadPoolExecutor(load.clients) as pool:
            try:
                figures = _phases(pool, clients, load)
            except BaseException:  # nothing is handled here: the threads' waits end, the cause goes on
                stop.set()
                raise
    finally:
        for client in clients:
            with suppress(TinkermeshError):
                client.clean_up()
            client.close()
        with suppress(TinkermeshError):
            head.post(f"sessions/{session}/finish", {"reason": {"type": "success"}, "detail": None})
        head.close()
    return Measured(head.base_url, load, figures, sum(client.refused for client in clients))


def _phases(pool: ThreadPoolExecutor, clients: Sequence[Client], load: Load) -> list[Figure]:
    _all(pool, [client.create for client in clients])
    began = time.monotonic()
    _all(pool, [_later(client.train, began + load.seconds) for client in clients])
    elapsed = time.monotonic() - began
    timed = _taken(clients)
    found = [figure(op, timed, elapsed) for op in ("forward_backward", "optim_step")]
    if load.samples and not any(one.failed for one in found):
        sessions = _all(pool, [client.prepare_samples for client in clients])
        began = time.monotonic()
        pairs = zip(clients, sessions, strict=True)
        _all(pool, [_later(client.sample, session, began + load.seconds) for client, session in pairs])
        found.append(figure("sample", _taken(clients), time.monotonic() - began))
    return found


def _later(work: Callable[..., T], *arguments: object) -> Callable[[], T]:
    return lambda: work(*arguments)


def _all(pool: ThreadPoolExecutor, works: Sequence[Callable[[], T]]) -> list[T]:
    """All at once, each in a thread of its own; answers in order. Raises the first error."""
    futures = [pool.submit(work) for work in works]
    try:
        wait(futures)
        return [future.result() for future in futures]
    except OperationFailed as error:
        raise Unavailable(str(error)) from error


def _taken(clients: Sequence[Client]) -> list[Timed]:
    timed = [one for client in clients for one in client.timed]
    for client in clients:
        client.timed = []
    return timed
