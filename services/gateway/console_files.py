"""The console's page: its files, read once, and the headers they go out with."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from starlette.responses import Response

DIRECTORY = Path(__file__).parent / "console"
PAGE = "index.html"

# Nothing that is not one of these files runs, is shown or is asked, whatever the page is made to hold.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = MappingProxyType(
    {
        "content-security-policy": POLICY,
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-cache",
    }
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class ConsoleFiles:
    def __init__(self, directory: Path = DIRECTORY) -> None:
        self._files = {
            file.name: (file.read_bytes(), _TYPES[file.suffix]) for file in directory.iterdir() if file.suffix in _TYPES
        }

    def answer(self, name: str) -> Response | None:
        """None: there is no such file."""
        if name not in self._files:
            return None
        content, kind = self._files[name]
        return Response(content, headers=dict(HEADERS), media_type=kind)
