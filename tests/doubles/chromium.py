"""A headless Chromium of this machine, or a reason why there is none."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.doubles.devtools import CALL_SECONDS, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS = 120.0
LARGEST_MESSAGE = 64 << 20
OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # root has no other way; it opens this mesh's own page only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",
)
MISSING = "no Chromium here: apt-get install chromium, or put one on the PATH"


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def browser(program: str, directory: Path) -> Iterator[Browser]:
    """Raises AssertionError with what the process wrote when it does not come up."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "chromium.log").open("wb") as output:
        command = [program, *OPTIONS, f"--user-data-dir={directory / 'profile'}", "about:blank"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        with connect(_address(process, directory), max_size=LARGEST_MESSAGE, proxy=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _address(process: subprocess.Popen[bytes], directory: Path) -> str:
    """Chromium writes its port, and the path of its WebSocket, to a file of its profile."""
    file, deadline = directory / "profile" / "DevToolsActivePort", time.monotonic() + START_SECONDS
    while not file.exists() or len(file.read_text().splitlines()) < 2:
        late = process.poll() is not None or time.monotonic() > deadline
        assert not late, (directory / "chromium.log").read_text(errors="replace")[-2000:]
        time.sleep(0.05)
    port, path = file.read_text().splitlines()[:2]
    return f"ws://127.0.0.1:{port}{path}"


class Browser:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._number = 1_000_000  # apart from those of pages

    @contextmanager
    def page(self) -> Iterator[Page]:
        """In a context of its own: nothing is stored beyond it."""
        context = self._call("Target.createBrowserContext")["browserContextId"]
        target = self._call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Page(self._socket, session)
        finally:
            self._call("Target.disposeBrowserContext", browserContextId=context)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(CALL_SECONDS))
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
