"""One mesh on this machine, from state directory to the moment a client can train and sample."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from types import TracebackType
from typing import IO, Any
from urllib.error import HTTPError

from services.common.errors import Unavailable
from services.local import endpoints, state
from services.local.addresses import Addresses, reserve
from services.local.plan import plan
from services.local.settings import LocalSettings
from services.local.spec import ChildSpec
from services.local.supervisor import Ready, Say, Supervisor

SERVING_SECONDS = 30.0
POLL_SECONDS = 0.2


class LocalMesh:
    """`async with LocalMesh(settings) as mesh: await mesh.start()`; leaving stops everything."""

    def __init__(self, settings: LocalSettings, say: Say = lambda _: None, ready: Ready = lambda _: None) -> None:
        self.settings = settings
        self.api_key = state.DEFAULT_KEY
        self.key_admitted = True
        """False once a gateway has refused `api_key`: the operator revoked it."""
        self.addresses: Addresses = reserve(settings)
        self._lock: IO[str] | None = None
        try:
            self._lock = state.prepare(settings)
            endpoints.write(settings, self.addresses)
            state.write_metrics_targets(settings, self.addresses.metrics)
            self.supervisor = Supervisor(self.specs(), say, ready)
        except BaseException:  # nothing is handled here: the lock goes, the cause goes on
            self._release()
            raise

    def specs(self) -> Sequence[ChildSpec]:
        return plan(self.settings, self.addresses)

    @property
    def base_url(self) -> str:
        return self.addresses.base_url

    @property
    def client_environment(self) -> dict[str, str]:
        """What points the SDK at this mesh; without a key when the local one was revoked."""
        key = {"TINKER_API_KEY": self.api_key} if self.key_admitted else {}
        return {"TINKER_BASE_URL": self.base_url, **key}

    async def start(self) -> None:
        """Raises ChildFailed, or Unavailable when the engines do not join the pool in time."""
        await self.supervisor.start()
        await self._wait_serving()

    async def _wait_serving(self) -> None:
        """Children being up is not enough: the pool must have its trainer and sampler."""
        last = "no answer yet"
        try:
            async with asyncio.timeout(SERVING_SECONDS):
                while True:
                    last = await asyncio.to_thread(self._missing)
                    if not last:
                        return
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError as error:
            raise Unavailable(f"mesh is up but not serving after {SERVING_SECONDS:.0f} s: {last}") from error

    def _missing(self) -> str:
        try:
            models = get_json(f"{self.base_url}/api/v1/get_server_capabilities", self.api_key)["supported_models"]
        except (OSError, ValueError, KeyError) as error:
            if isinstance(error, HTTPError) and error.code == HTTPStatus.UNAUTHORIZED:
                self.key_admitted = False  # the mesh answers; it cannot be asked more with this key
                return ""
            return f"get_server_capabilities: {error!r}"
        mine = next((m for m in models if m.get("model_name") == self.settings.model_name), None)
        if mine is None:
            return f"no pool for {self.settings.model_name}"
        wanted = ("trainable", "sampleable") if self.settings.sampler else ("trainable",)
        return ", ".join(f"not {name}" for name in wanted if not mine.get(name))

    async def stop(self) -> None:
        try:
            await self.supervisor.stop()
        finally:
            self._release()

    def _release(self) -> None:
        self.addresses.gateway.close()
        if self._lock is not None:
            self._lock.close()

    async def __aenter__(self) -> LocalMesh:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


def get_json(url: str, api_key: str) -> Any:
    """Raises OSError or ValueError."""
    request = urllib.request.Request(url, headers={"X-API-Key": api_key})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy
    with opener.open(request, timeout=5.0) as answer:
        return json.load(answer)
