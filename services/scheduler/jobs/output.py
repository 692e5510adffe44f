"""What a running task has generated so far: in memory, and how much of it is saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from tinkermesh.v1 import sampler_pb2 as pb

from services.common.errors import ServerError
from services.common.ids import JobId
from services.scheduler.jobs.records import Origin, Provenance, Sample, Segment
from services.scheduler.store.jobs import RECORD_BYTES, Growth, Partial, PartialSample

_RECORD = np.dtype([("token", "<i4"), ("logprob", "<f4")])
_UNKNOWN = -99999.0


class Attempt(msgspec.Struct, frozen=True):
    """Where one attempt began, as it is saved with its first token."""

    sample: int
    start: int
    samplers: list[str] = []


@dataclass(slots=True)
class SampleOutput:
    records: bytearray = field(default_factory=bytearray)  # RECORD_BYTES a token
    text: bytearray = field(default_factory=bytearray)
    finish: str = ""
    attempts: list[Attempt] = field(default_factory=list)
    saved_bytes: int = 0
    saved_text: int = 0
    saved_finish: str = ""
    saved_attempts: int = 0

    @property
    def tokens(self) -> int:
        return len(self.records) // RECORD_BYTES

    @property
    def ids(self) -> bytes:
        """int32 little-endian."""
        return np.frombuffer(bytes(self.records), _RECORD)["token"].tobytes()


class TaskOutput:
    """All samples of a task. `cached_tokens`: of its prompt, as the first attempt found it."""

    def __init__(self, job: JobId, index: int, samples: int) -> None:
        self.job = job
        self.index = index
        self.samples = [SampleOutput() for _ in range(samples)]
        self.cached_tokens = 0

    @property
    def tokens(self) -> int:
        return sum(sample.tokens for sample in self.samples)

    @property
    def unsaved(self) -> int:
        """Tokens."""
        return sum(len(sample.records) - sample.saved_bytes for sample in self.samples) // RECORD_BYTES

    def unfinished(self, max_tokens: int) -> list[int]:
        """Samples that go on. One that has all its tokens is finished, though its end may have been lost."""
        for sample in self.samples:
            if not sample.finish and sample.tokens >= max_tokens:
                sample.finish = "length"
        return [number for number, sample in enumerate(self.samples) if not sample.finish]

    def resume(self, partial: Partial) -> None:
        """What an earlier scheduler saved."""
        for sample, saved in zip(self.samples, partial.samples, strict=True):
            _take_saved(sample, saved)
        found = [msgspec.json.decode(line, type=Attempt) for line in partial.segments]
        for attempt in sorted(found, key=lambda one: one.start):
            sample = self.samples[attempt.sample]
            sample.attempts.append(attempt)
            sample.saved_attempts += 1

    def begin(self, number: int, samplers: Sequence[str]) -> None:
        """An attempt at a sample: what follows is its segment."""
        sample = self.samples[number]
        if sample.attempts and sample.attempts[-1].start == sample.tokens:  # the last one brought nothing
            sample.saved_attempts = min(sample.saved_attempts, len(sample.attempts) - 1)
            sample.attempts.pop()
        sample.attempts.append(Attempt(number, sample.tokens, list(samplers)))

    def take(self, number: int, chunk: pb.SampleChunk) -> None:
        """Raises ServerError for a token without its logprob."""
        if len(chunk.tokens) != len(chunk.logprobs) or len(chunk.tokens) % 4:
            raise ServerError(f"{len(chunk.tokens)} token bytes came with {len(chunk.logprobs)} of logprobs")
        sample = self.samples[number]
        if sample.finish:
            raise ServerError(f"sequence {number} went on after its end")
        sample.records += _interleaved(chunk.tokens, chunk.logprobs)
        sample.text += chunk.text.encode()
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        if chunk.finish and not sample.tokens:
            raise ServerError(f"sequence {number} ended without a token")
        sample.finish = chunk.finish

    # -- saving --------------------------------------------------------------------------

    def growth(self) -> Iterator[Growth]:
        """What is not saved yet."""
        for number, sample in enumerate(self.samples):
            data = bytes(sample.records[sample.saved_bytes :])
            if data or sample.finish != sample.saved_finish:
                fresh = sample.attempts[sample.saved_attempts :] if data else []
                yield Growth(
                    self.job, self.index, number, sample.saved_bytes // RECORD_BYTES, data, sample.saved_text,
                    bytes(sample.text[sample.saved_text :]), msgspec.json.encode(fresh[-1]) if fresh else b"",
                    sample.finish,
                )  # fmt: skip

    def saved(self, growth: Growth) -> None:
        sample = self.samples[growth.sample]
        sample.saved_bytes = growth.tokens_before * RECORD_BYTES + len(growth.data)
        sample.saved_text = growth.text_before + len(growth.text)
        sample.saved_finish = growth.finish
        if growth.segment:
            sample.saved_attempts = len(sample.attempts)

    # -- the end -------------------------------------------------------------------------

    def result(self, origin: Origin | None, otherwise: str) -> list[Sample]:
        """`otherwise`: the finish reason of a sample that has none."""
        return [_sample(number, one, origin, otherwise) for number, one in enumerate(self.samples)]


def _take_saved(sample: SampleOutput, saved: PartialSample) -> None:
    whole = len(saved.data) // RECORD_BYTES * RECORD_BYTES
    sample.records += saved.data[:whole]
    sample.text += saved.text.encode()
    sample.finish = sample.saved_finish = saved.finish
    sample.saved_bytes, sample.saved_text = whole, len(sample.text)


def _interleaved(tokens: bytes, logprobs: bytes) -> bytes:
    records = np.empty(len(tokens) // 4, _RECORD)
    records["token"] = np.frombuffer(tokens, "<i4")
    records["logprob"] = np.frombuffer(logprobs, "<f4")
    return records.tobytes()


def _sample(number: int, one: SampleOutput, origin: Origin | None, otherwise: str) -> Sample:
    records = np.frombuffer(bytes(one.records), _RECORD)
    logprobs = np.nan_to_num(records["logprob"].astype(np.float64), nan=_UNKNOWN, neginf=_UNKNOWN)
    ends = [*(attempt.start for attempt in one.attempts[1:]), one.tokens] if one.attempts else []
    segments = [
        Segment(attempt.start, end - attempt.start, attempt.samplers)
        for attempt, end in zip(one.attempts, ends, strict=True)
        if end > attempt.start
    ]
    return Sample(
        output_text=one.text.decode(errors="replace"),
        output_ids=records["token"].tolist(),
        output_token_logprobs=logprobs.tolist(),
        finish_reason=one.finish or otherwise,
        sample_index=number,
        provenance=Provenance(origin, segments),
    )
