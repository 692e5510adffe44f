"""One page of a browser, driven by the Chrome DevTools protocol over its WebSocket."""

from __future__ import annotations

import base64
import itertools
import json
import time
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection

CALL_SECONDS = 60.0
LOOK_SECONDS = 0.05
KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Space": (" ", 32, " "),
    "ArrowDown": ("ArrowDown", 40, ""),
    "ArrowUp": ("ArrowUp", 38, ""),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
    "Home": ("Home", 36, ""),
    "End": ("End", 35, ""),
}
SHIFT = 8


class Page:
    """`requests`: addresses of all requests the page began; `answered`: those that an answer came to, with its status;
    `blocked`: those that the browser refused to send, with its reason; `complaints`: what it wrote to its console."""

    def __init__(self, socket: ClientConnection, session: str) -> None:
        self._socket, self._session = socket, session
        self._numbers = itertools.count(1)
        self._names: dict[str, str] = {}
        self.requests: list[str] = []
        self.answered: dict[str, int] = {}
        self.blocked: dict[str, str] = {}
        self.complaints: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    # ---- the protocol ----------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Raises AssertionError with the browser's own text."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters, "sessionId": self._session}
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(CALL_SECONDS))
            if answer.get("id") == number and answer.get("sessionId") == self._session:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        told, kind = event.get("params", {}), event.get("method", "")
        if kind == "Network.requestWillBeSent":
            address = told["request"]["url"]
            self._names[told["requestId"]] = address
            self.requests.append(address)
        elif kind == "Network.responseReceived":
            self.answered[told["response"]["url"]] = told["response"]["status"]
        elif kind == "Network.loadingFailed":
            address = self._names.get(told["requestId"], "")
            self.blocked[address] = told.get("blockedReason") or told.get("errorText", "")
        elif kind == "Log.entryAdded":
            self.complaints.append(told["entry"]["text"])
        elif kind == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details["text"])

    # ---- looking ---------------------------------------------------------------------------

    def value(self, expression: str) -> Any:
        """Of a JavaScript expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector: str) -> str:
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Its value as soon as it is true. Raises AssertionError with what the page shows."""
        deadline = time.monotonic() + seconds
        while not (found := self.value(expression)):
            assert time.monotonic() < deadline, f"never came true: {expression}\n{self.text('body')}\n{self.complaints}"
            time.sleep(LOOK_SECONDS)
        return found

    # ---- doing -----------------------------------------------------------------------------

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def resize(self, width: int, height: int, *, scheme: str = "light") -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}  # colours are there at once
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def press(self, name: str, *, shift: bool = False) -> None:
        key, code, text = KEYS[name]
        pressed = {"key": key, "code": name, "windowsVirtualKeyCode": code, "modifiers": SHIFT if shift else 0}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
        self.call("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def hover(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """`whole`: all of the page, however long."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data))
