"""Text of tokens as they are generated: whole characters only, stop strings kept back and out.

What is told, joined, is the decoded text of all tokens without special ones, up to the stop string. A character whose
bytes come in several tokens is told with the last of them; text that may yet become a stop string is told when it did
not. Stop strings may hold special tokens' text, which is matched and never told.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"
_LONGEST_CHARACTER = 4  # tokens, as a character has at most four bytes


class Decoder(Protocol):
    @property
    def special(self) -> frozenset[int]:
        """Tokens that mark structure; they have a text and are not part of what is said."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Nothing skipped or tidied; bytes that are no character become U+FFFD; an unknown token is nothing."""
        ...


class Characters:
    """The text of ordinary tokens, by one more token at a time.

    Decoders write a token by what stands before it, so the tokens of the last text told stay as its context.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decode = decoder.decode
        self._tokens: list[int] = []
        self._context = 0  # how many of them are told
        self._told = ""  # their text

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if not text.endswith(REPLACEMENT):
            if text == self._told:
                self._tokens.pop()  # says nothing: no context for what follows
                return ""
            return self._tell(len(self._tokens), text)
        if len(self._tokens) - self._context > _LONGEST_CHARACTER:
            return self._tell_garbage(text)
        return ""

    def flush(self) -> str:
        """What was held back, an unfinished character as U+FFFD."""
        return self._tell(len(self._tokens), self._decode(self._tokens))

    def _tell(self, count: int, text: str) -> str:
        new = text[len(self._told) :]
        self._tokens, self._context = self._tokens[self._context :], count - self._context
        self._told = self._decode(self._tokens[: self._context])
        return new

    def _tell_garbage(self, text: str) -> str:
        """Bytes that never become characters must not pile up: tell all but the end that still may."""
        last = len(self._tokens)
        for cut in range(last - 1, last - _LONGEST_CHARACTER, -1):
            head, tail = self._decode(self._tokens[:cut]), self._decode(self._tokens[cut:])
            if tail and head + tail == text:
                return self._tell(cut, head)
        return ""


class StopStrings:
    """Tells text but for stop strings; `stopped` from the end of the first one on."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""  # may be the beginning of a stop string
        self._shown: list[bool] = []  # whether each of its characters is told in the end
        self.stopped = False

    def push(self, text: str, *, shown: bool = True) -> str:
        if not self._stops:
            return text if shown else ""
        self._held += text
        self._shown += [shown] * len(text)
        start = self._first_stop()
        if start is None:
            return self._release(len(self._held) - self._promising())
        told = self._release(start)
        self.forget()
        self.stopped = True
        return told

    def flush(self) -> str:
        return self._release(len(self._held))

    def forget(self) -> None:
        """What is held back is told by nobody."""
        self._held, self._shown, self.stopped = "", [], False

    def _first_stop(self) -> int | None:
        """Where the stop string begins that is complete first, as if the text had come by single characters."""
        found = ((self._held.find(stop), stop) for stop in self._stops)
        ends = [(start + len(stop), start) for start, stop in found if start >= 0]
        return min(ends)[1] if ends else None

    def _promising(self) -> int:
        """Characters at the end that a stop string begins with."""
        longest = min(len(self._held), max(len(stop) for stop in self._stops) - 1)
        tails = (self._held[-size:] for size in range(longest, 0, -1))
        return next((len(tail) for tail in tails if any(stop.startswith(tail) for stop in self._stops)), 0)

    def _release(self, count: int) -> str:
        told = "".join(c for c, shown in zip(self._held[:count], self._shown, strict=False) if shown)
        self._held, self._shown = self._held[count:], self._shown[count:]
        return told


class TokenText:
    """The text of one sequence, token by token.

    `seam`: tokens that were told elsewhere, by another sampler, up to what it held back; this goes on from there.
    """

    def __init__(self, decoder: Decoder, stops: Sequence[str] = (), seam: Sequence[int] = ()) -> None:
        self._decoder = decoder
        self._characters = Characters(decoder)
        self._stops = StopStrings(stops)
        for token in seam:
            self.push(token)
        if self.stopped:  # a new answer is asked for: only what it says can stop it
            self._stops.forget()

    @property
    def stopped(self) -> bool:
        """The last token completed a stop string; what follows it is not part of the answer."""
        return self._stops.stopped

    def push(self, token: int) -> str:
        if token in self._decoder.special:
            return self._stops.push(self._decoder.decode([token]), shown=False)
        return self._stops.push(self._characters.push(token))

    def flush(self) -> str:
        """What was held back, of a sequence that has ended."""
        if self.stopped:
            return ""
        return self._stops.push(self._characters.flush()) + ("" if self.stopped else self._stops.flush())
