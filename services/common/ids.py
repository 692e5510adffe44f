"""Identifiers: each comes from the client's own key, so a retry finds the same one.

* session id            UUID4
* model id              ``<session>:train:<model_seq_id>`` (the SDK computes it itself)
* sampling session id   ``<session>:sample:<sampling_session_seq_id>:<pool>``
* request id            ``<pool>.<32 hex of the client's key>.<generation>``
* job id                ``job-<32 hex>.<pool>``
* completions wait      ``@<sampling session id>:<clone>><cursor>``: a name in Watch, not a client's id
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import NamedTuple

from services.common.errors import MissingResource, UnknownId

_SESSION = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_MODEL = re.compile(rf"({_SESSION}):train:(0|[1-9][0-9]{{0,18}})")
_POOL = r"[a-z0-9][a-z0-9_-]{0,62}"
_SAMPLING = re.compile(rf"({_SESSION}):sample:(0|[1-9][0-9]{{0,18}}):({_POOL})")
_REQUEST = re.compile(rf"({_POOL})\.([0-9a-f]{{32}})\.(0|[1-9][0-9]{{0,5}})")
_JOB = re.compile(rf"job-([0-9a-f]{{32}})\.({_POOL})")
_COMPLETIONS = re.compile(rf"@({_SAMPLING.pattern}):([0-9]{{1,19}})>([0-9]{{1,16}})")


class ModelId(NamedTuple):
    session_id: str
    model_seq_id: int

    def __str__(self) -> str:
        return f"{self.session_id}:train:{self.model_seq_id}"


class SamplingSessionId(NamedTuple):
    session_id: str
    seq_id: int
    pool: str

    def __str__(self) -> str:
        return f"{self.session_id}:sample:{self.seq_id}:{self.pool}"


class RequestId(NamedTuple):
    pool: str
    key: str
    generation: int

    def __str__(self) -> str:
        return f"{self.pool}.{self.key}.{self.generation}"


class JobId(NamedTuple):
    key: str
    pool: str

    def __str__(self) -> str:
        return f"job-{self.key}.{self.pool}"


class CompletionsWait(NamedTuple):
    """Waits for what settles, behind a cursor, for the client `clone` (seq id // 10^9) of a sampling session."""

    sampling_session_id: str
    clone: int
    after: int

    def __str__(self) -> str:
        return f"{self.word}>{self.after}"

    @property
    def word(self) -> str:
        """What a settlement of this client is announced by."""
        return f"@{self.sampling_session_id}:{self.clone}"

    @property
    def pool(self) -> str:
        return parse_sampling_session_id(self.sampling_session_id).pool


def new_session_id() -> str:
    return str(uuid.uuid4())


def is_session_id(text: str) -> bool:
    return re.fullmatch(_SESSION, text) is not None


def is_pool_name(text: str) -> bool:
    return re.fullmatch(_POOL, text) is not None


def parse_model_id(text: str) -> ModelId:
    """Raises UnknownId when `text` is not a model id."""
    match = _MODEL.fullmatch(text)
    if match is None:
        raise UnknownId(f"model_id {text[:200]!r} is not one of this mesh: expected <session>:train:<n>")
    return ModelId(match[1], int(match[2]))


def parse_sampling_session_id(text: str) -> SamplingSessionId:
    """Raises UnknownId when `text` is not a sampling session id."""
    match = _SAMPLING.fullmatch(text)
    if match is None:
        raise UnknownId(f"sampling_session_id {text[:200]!r} is not one of this mesh")
    return SamplingSessionId(match[1], int(match[2]), match[3])


def parse_request_id(text: str) -> RequestId:
    """Raises UnknownId when `text` is not a request id."""
    match = _REQUEST.fullmatch(text)
    if match is None:
        raise UnknownId(f"request_id {text[:200]!r} is not one of this mesh")
    return RequestId(match[1], match[2], int(match[3]))


def parse_job_id(text: str) -> JobId:
    """Raises MissingResource when `text` is not a job id."""
    match = _JOB.fullmatch(text)
    if match is None:
        raise MissingResource(f"job {text[:200]!r} does not exist")
    return JobId(match[1], match[2])


def parse_completions_wait(text: str) -> CompletionsWait:
    """Raises UnknownId when `text` is not such a name."""
    match = _COMPLETIONS.fullmatch(text)
    if match is None:
        raise UnknownId(f"{text[:200]!r} is not a wait for completions")
    *_, clone, after = match.groups()
    return CompletionsWait(match[1], int(clone), int(after))


def key_hash(*parts: str | int) -> str:
    """32 hex characters over length-prefixed parts, so no two keys share an encoding."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.hexdigest()
