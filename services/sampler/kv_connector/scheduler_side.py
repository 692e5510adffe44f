"""The half of the connector beside the engine's scheduler: which blocks are loaded and saved with which step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.sampler import kv_metrics
from services.sampler.kv_connector.leg import Part, leg_of
from services.sampler.kv_connector.saving import SaveProgress, StepView
from services.sampler.kv_connector.steps import BlockMove, StepMoves


class Keys(Protocol):
    def of_request(self, request: Any, hashes: Sequence[bytes], tokens: Sequence[int]) -> list[str]: ...

    def tail(self, request: Any, hashes: Sequence[bytes], tokens: Sequence[int]) -> str: ...


@dataclass(slots=True)
class Saving:
    """A prefill leg; `request` is vLLM's."""

    request: Any
    sequence_id: str
    progress: SaveProgress


@dataclass(slots=True)
class Loading:
    """A decode leg: its first `prompt` tokens come from the tier."""

    request: Any
    sequence_id: str
    prompt: int
    keys: list[str]
    start: int = 0
    """Where its load begins."""


class SchedulerSide:
    """`available` says whether a block is at hand; without `strict` only those are loaded, and the rest computed."""

    def __init__(self, block_size: int, keys: Keys, available: Callable[[str], bool], *, strict: bool) -> None:
        self._block_size = block_size
        self._keys = keys
        self._available = available
        self._strict = strict
        self._saving: dict[str, Saving] = {}
        self._loading: dict[str, Loading] = {}
        self._loads: list[BlockMove] = []

    def on_new_request(self, request: Any) -> None:
        leg = leg_of(request.kv_transfer_params)
        # A multimodal prompt's tokens are not all it depends on.
        if leg is None or request.mm_features or request.prompt_embeds is not None:
            return
        prompt = request.num_prompt_tokens
        if leg.part is Part.PREFILL:
            progress = SaveProgress(prompt, self._block_size)
            self._saving[request.request_id] = Saving(request, leg.sequence_id, progress)
        elif prompt > 1:
            known = request.prompt_token_ids[: prompt - 1]
            keys = self._keys.of_request(request, request.block_hashes, known)
            self._loading[request.request_id] = Loading(request, leg.sequence_id, prompt - 1, keys)

    def forget(self, request_id: str) -> None:
        self._saving.pop(request_id, None)
        self._loading.pop(request_id, None)

    def matched(self, request: Any, local: int) -> int:
        """Tokens to load beyond the first `local`, which the engine still has (whole blocks)."""
        loading = self._loading.get(request.request_id)
        if loading is None:
            return 0
        loading.start = local
        return max(0, self._claim(loading, local) - local)

    def allocated(self, request: Any, block_ids: Sequence[int], external: int) -> None:
        """The request has its blocks: `external` tokens, as matched last, are loaded in this step."""
        loading = self._loading.get(request.request_id)
        if loading is None or not external:
            return
        first = loading.start // self._block_size
        last = -(-(loading.start + external) // self._block_size)
        moves = (BlockMove(loading.sequence_id, loading.keys[i], block_ids[i]) for i in range(first, last))
        self._loads.extend(moves)

    def moves(self, output: Any) -> StepMoves:
        """For the step that vLLM's SchedulerOutput `output` describes."""
        made = StepMoves(loads=self._loads)
        self._loads = []
        for request_id, computed, scheduled in _steps(output):
            if (saving := self._saving.get(request_id)) is not None:
                block_ids = output.kv_connector_block_state.get_block_ids(request_id)[0]
                made.saves.extend(self._saves(saving, computed, scheduled, block_ids))
            elif (loading := self._loading.get(request_id)) is not None:
                kv_metrics.recomputed(max(0, min(computed + scheduled, loading.prompt) - computed))
        return made

    def _claim(self, loading: Loading, local: int) -> int:
        """Up to which position the prompt is there or can be loaded."""
        if self._strict:
            return loading.prompt
        block = local // self._block_size
        while block < len(loading.keys) and self._available(loading.keys[block]):
            block += 1
        return min(block * self._block_size, loading.prompt)

    def _saves(self, saving: Saving, computed: int, scheduled: int, block_ids: Sequence[int]) -> Iterator[BlockMove]:
        hashes = saving.request.block_hashes
        step = StepView(computed, scheduled, allocated=len(block_ids), hashed=len(hashes))
        due = saving.progress.advance(step)
        for index in range(due.first, due.last):
            yield BlockMove(saving.sequence_id, hashes[index].hex(), block_ids[index])
        if due.tail:
            tokens = saving.request.prompt_token_ids
            key = self._keys.tail(saving.request, hashes, tokens)
            yield BlockMove(saving.sequence_id, key, block_ids[saving.progress.full_blocks])


def _steps(output: Any) -> Iterator[tuple[str, int, int]]:
    """(request id, positions computed before, positions the step computes) of every request in the step."""
    cached = output.scheduled_cached_reqs
    computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    computed |= {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    for request_id, scheduled in output.num_scheduled_tokens.items():
        yield request_id, computed[request_id], scheduled
