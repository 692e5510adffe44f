"""A checkpoint's files: signed links for those who may read it, and what the links answer."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send
from tinkermesh.v1 import catalog_pb2 as pb

from services.common.errors import InvalidInput, MissingResource
from services.common.tinker_path import TinkerPath, parse_checkpoint_id
from services.gateway.endpoint import PREFIX, Call, endpoint
from services.gateway.gateway import Gateway
from services.gateway.http import json_response
from services.gateway.links import Target, end_of_links
from services.gateway.places import Places
from services.gateway.routes.checkpoints import CHECKPOINT, checkpoint_path
from services.gateway.upstream.catalog import Download
from services.gateway.wire.render_catalog import time_text

_RANGE = re.compile(r"bytes=([0-9]{1,15})-([0-9]{0,15})")
_VERSION = "/downloads/{run_id}/{kind}/{name}/{version}"


def routes(gateway: Gateway) -> list[Route]:
    settings = gateway.settings
    places = Places("downloads", settings.max_downloads_per_tenant, settings.max_downloads)

    async def download_file(call: Call) -> Response:
        return await _placed(places, call, call.path("file"), _file)

    async def download_archive(call: Call) -> Response:
        return await _placed(places, call, "", _archive)

    return [
        endpoint(gateway, f"{CHECKPOINT}/external_weights_urls", external_weights_urls, ("GET",)),
        endpoint(gateway, f"{CHECKPOINT}/archive", archive_url, ("GET",)),
        endpoint(gateway, f"{_VERSION}/files/{{file}}", download_file, ("GET",), authenticate=False),
        endpoint(gateway, f"{_VERSION}/archive", download_archive, ("GET",), authenticate=False),
    ]


class _Stream(StreamingResponse):
    """`ends` is closed when the answer is over, however it ended."""

    def __init__(self, download: Download, status: int, headers: dict[str, Any], media_type: str) -> None:
        super().__init__(download.data(), status, headers, media_type)
        self.ends = ExitStack()
        self._download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._download.call.cancel()
            self.ends.close()


Answer = Callable[[Call, Target], Awaitable[Response]]


async def external_weights_urls(call: Call) -> Response:
    """Any kind of checkpoint: all of them hold a PEFT directory."""
    path = checkpoint_path(call)
    found = await call.gateway.catalog.describe_download(call.tenant, str(path))
    expires = end_of_links(found.expires_unix_ms)
    urls = {file.name: _url(call, path, found.version, file.name, expires) for file in found.files}
    return json_response({"urls": urls, "expires": time_text(expires * 1000)})


async def archive_url(call: Call) -> Response:
    """SDK 0.26.2: all files of a checkpoint as one tar archive."""
    path = checkpoint_path(call)
    found = await call.gateway.catalog.describe_download(call.tenant, str(path))
    expires = end_of_links(found.expires_unix_ms)
    url = _url(call, path, found.version, "", expires)
    return json_response({"url": url, "expires": time_text(expires * 1000)})


def _url(call: Call, path: TinkerPath, version: str, file: str, expires: int) -> str:
    request, target = call.request, Target(path, version, file, call.gateway.links.account(call.tenant))
    base = call.gateway.settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.url.netloc}"
    return base + PREFIX + call.gateway.links.relative(target, expires)


async def _placed(places: Places, call: Call, file: str, answer: Answer) -> Response:
    """The place is held until the last byte is sent or the client has gone. Raises Busy."""
    target = _checked(call, file)
    with ExitStack() as held:
        held.enter_context(places.held_by(target.account))
        response = await answer(call, target)
        if isinstance(response, _Stream):
            response.ends = held.pop_all()
        return response


async def _file(call: Call, target: Target) -> Response:
    offset, end = _range(call.header("range"))
    request = pb.ReadFileRequest(path=str(target.path), version=target.version, file=target.file)
    request.offset, request.length = offset or 0, 0 if end is None else end - (offset or 0)
    try:
        download = await call.gateway.catalog.read_file(request)
        _check_first(offset, download)
    except InvalidInput as error:
        if offset is None:  # the fault is not the range's
            raise
        return json_response({"detail": error.message, "error": error.code, "category": "user"}, 416)
    name = target.file
    if offset is None:
        return _stream(call, download, download.total_bytes, "application/octet-stream", name)
    last = min(end or download.total_bytes, download.total_bytes)
    where = f"bytes {offset}-{last - 1}/{download.total_bytes}"
    return _stream(call, download, last - offset, "application/octet-stream", name, 206, {"content-range": where})


def _check_first(offset: int | None, download: Download) -> None:
    """A part has a byte at least. Raises InvalidInput."""
    if offset is not None and offset >= download.total_bytes:
        download.call.cancel()
        raise InvalidInput(f"range: byte {offset} is behind the file's {download.total_bytes} bytes")


async def _archive(call: Call, target: Target) -> Response:
    request = pb.ReadArchiveRequest(path=str(target.path), version=target.version)
    download = await call.gateway.catalog.read_archive(request)
    return _stream(call, download, download.total_bytes, "application/x-tar", f"{target.path.name}.tar")


def _checked(call: Call, file: str) -> Target:
    """Raises Forbidden, MissingResource."""
    try:
        path = parse_checkpoint_id(call.path("run_id"), f"{call.path('kind')}/{call.path('name')}")
    except InvalidInput as error:
        raise MissingResource(error.message) from error
    query = call.request.query_params
    target = Target(path, call.path("version"), file, query.get("for", ""))
    call.gateway.links.check(target, query.get("expires", ""), query.get("signature", ""))
    return target


def _range(header: str) -> tuple[int | None, int | None]:
    """(first byte, end) of a single range; anything else is answered with the whole file, as HTTP allows."""
    match = _RANGE.fullmatch(header.strip())
    if match is None or (match[2] and int(match[2]) < int(match[1])):
        return None, None
    return int(match[1]), int(match[2]) + 1 if match[2] else None


def _stream(
    call: Call,
    download: Download,
    length: int,
    media_type: str,
    name: str,
    status: int = 200,
    more: dict[str, str] | None = None,
) -> Response:
    headers: dict[str, Any] = {
        "content-length": str(length),
        "content-disposition": f'attachment; filename="{name}"',
        "accept-ranges": "bytes" if media_type != "application/x-tar" else "none",
        "cache-control": "private, no-store",
        **(more or {}),
    }
    if call.request.method == "HEAD":
        download.call.cancel()
        return Response(None, status, headers, media_type)
    return _Stream(download, status, headers, media_type)
