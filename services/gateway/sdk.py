"""Which SDK a client is, and the range of releases this mesh is tested with."""

from __future__ import annotations

import re
from collections.abc import Mapping

OLDEST_TESTED, NEWEST_TESTED = (0, 26, 2), (0, 38, 0)
_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?")

Version = tuple[int, ...]


def version_of(text: str) -> Version | None:
    """(major, minor, patch); None for what is no version."""
    match = _VERSION.match(text)
    return None if match is None else tuple(int(part or 0) for part in match.groups())


def client_version(headers: Mapping[str, str]) -> Version | None:
    """None for a client that is no SDK."""
    return version_of(headers.get("x-stainless-package-version", ""))


def is_newer(version: Version | None) -> bool:
    """Newer than every tested release: it may send fields that nobody here knows yet."""
    return version is not None and version > NEWEST_TESTED


def version_warning(sdk_version: str) -> str:
    """Not empty for an SDK outside the tested range; it is served all the same."""
    version = version_of(sdk_version)
    if version is None or OLDEST_TESTED <= version <= NEWEST_TESTED:
        return ""
    oldest, newest = (".".join(map(str, bound)) for bound in (OLDEST_TESTED, NEWEST_TESTED))
    return f"SDK {sdk_version[:40]} is outside the range this mesh is tested with ({oldest} to {newest})"
