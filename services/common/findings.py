"""What a check of the surroundings came to, as `tinkermesh doctor` shows it and services report it."""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["ok", "note", "warning", "error"]
"""note: worth knowing, nothing to do; warning: will hurt one day; error: the mesh does not work like this."""


class Finding(msgspec.Struct, frozen=True):
    """`remedy` says what to do, "" where there is nothing to be done."""

    check: str
    level: Level
    text: str
    remedy: str = ""


def ok(check: str, text: str) -> Finding:
    return Finding(check, "ok", text)


def note(check: str, text: str, remedy: str = "") -> Finding:
    return Finding(check, "note", text, remedy)


def warning(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "warning", text, remedy)


def error(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, "error", text, remedy)
