"""``tinker://<model id>/<kind>/<name>`` and the segment grammar that keeps it inside the store."""

from __future__ import annotations

import re
from typing import NamedTuple

from services.common.errors import InvalidInput, UnknownId
from services.common.ids import parse_model_id

SCHEME = "tinker://"
WEIGHTS = "weights"
SAMPLER_WEIGHTS = "sampler_weights"
EXTERNAL_WEIGHTS = "external_weights"
KINDS = (WEIGHTS, SAMPLER_WEIGHTS, EXTERNAL_WEIGHTS)
DURABLE = "durable"
"""Kind of the mesh's own slot checkpoints. Not one of KINDS: no tinker:// path names them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class TinkerPath(NamedTuple):
    model_id: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.model_id}/{self.kind}/{self.name}"

    @property
    def checkpoint_id(self) -> str:
        return f"{self.kind}/{self.name}"


def check_name(name: str, field: str) -> str:
    """A checkpoint name as it is. Raises InvalidInput naming `field`."""
    if _NAME.fullmatch(name) is None:
        raise InvalidInput(
            f"{field}: {name[:160]!r} is not a valid name; "
            "use 1 to 128 of A-Z a-z 0-9 . _ - starting with a letter or digit"
        )
    return name


def parse_tinker_path(text: str, field: str = "path") -> TinkerPath:
    """Raises InvalidInput naming `field` and what is wrong."""
    parts = text.removeprefix(SCHEME).split("/")
    if not text.startswith(SCHEME) or len(parts) != 3:
        raise InvalidInput(f"{field}: {text[:300]!r} is not tinker://<model id>/<{'|'.join(KINDS)}>/<name>")
    model_id, kind, name = parts
    if kind not in KINDS:
        raise InvalidInput(f"{field}: kind {kind[:40]!r} is not one of {', '.join(KINDS)}")
    try:
        parse_model_id(model_id)
    except UnknownId as error:
        raise InvalidInput(f"{field}: {error}") from error
    return TinkerPath(model_id, kind, check_name(name, field))


def parse_checkpoint_id(model_id: str, checkpoint_id: str) -> TinkerPath:
    """`checkpoint_id` is ``<kind>/<name>``. Raises InvalidInput."""
    return parse_tinker_path(f"{SCHEME}{model_id}/{checkpoint_id}", "checkpoint_id")
