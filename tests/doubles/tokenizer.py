"""The doubles' tokenizer: bytes and a few words, so any text comes back from its ids, and characters span tokens.

Token n below 256 is the byte n, but for 0 (end) and 1 (pad), which are special; those two bytes are the last tokens.
The rest are words and syllables. "€" is three tokens, an emoji four.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from services.sampler.conversation import Conversation

VOCABULARY = 512
END, PAD = 0, 1
SPECIAL_TEXTS = {END: "<|end|>", PAD: "<|pad|>"}
_WORDS = (  # noqa: SIM905 - easier to read
    "the of and to in is that it was for on are as with his they at be this from have or by one had not but what all "
    "were when we there can an your which their said if do will each about how up out them then she many some so these "
    "would other into has more her two like him see time could no make than first been its who now people my made over"
).split()
_SYLLABLES = [consonant + vowel for consonant in "bcdfghjklmnpqrstvwxz" for vowel in "aeiou"]
_PIECES = [f" {word}" for word in _WORDS] + _SYLLABLES + [f" {syllable}" for syllable in _SYLLABLES]
_FIRST_PIECE, _ZERO, _ONE = 256, 511, 510
PIECES = dict(enumerate(_PIECES[: _ONE - _FIRST_PIECE], start=_FIRST_PIECE))
_BYTES = {token: bytes([token]) for token in range(2, 256)}
_BYTES |= {token: piece.encode() for token, piece in PIECES.items()}
_BYTES |= {token: text.encode() for token, text in SPECIAL_TEXTS.items()} | {_ONE: b"\x01", _ZERO: b"\x00"}
_TOKENS = {text: token for token, text in (PIECES | SPECIAL_TEXTS).items()}
_LONGEST = max(map(len, _TOKENS))


class WordTokenizer:
    """As services.sampler.ports.Tokenizer."""

    special = frozenset(SPECIAL_TEXTS)

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The longest pieces first; a special token's text is that token. Special tokens are never added."""
        tokens: list[int] = []
        at = 0
        while at < len(text):
            heads = (text[at : at + size] for size in range(min(_LONGEST, len(text) - at), 0, -1))
            piece = next((head for head in heads if head in _TOKENS), None)
            tokens += _characters(text[at]) if piece is None else [_TOKENS[piece]]
            at += len(piece or text[at])
        return tokens

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(_BYTES.get(token, b"") for token in tokens).decode(errors="replace")

    def piece(self, token: int) -> bytes:
        return _BYTES.get(token, b"")

    def render(self, conversation: Conversation) -> list[int]:
        """Lines of "role: content", tools first as JSON; "assistant:" is the prompt to generate."""
        lines = [json.dumps(conversation.tools, sort_keys=True)] if conversation.tools else []
        for message in conversation.messages:
            calls = json.dumps(message["tool_calls"], sort_keys=True) if message.get("tool_calls") else ""
            lines.append(f"{message['role']}: {message.get('content') or ''}{calls}")
        end = "" if conversation.continue_final_message else "\n"
        text = "\n".join(lines) + end + ("assistant:" if conversation.add_generation_prompt else "")
        return self.encode(text, add_special_tokens=False)


def _characters(character: str) -> list[int]:
    return [{0: _ZERO, 1: _ONE}.get(byte, byte) for byte in character.encode(errors="replace")]


def text_of(tokens: Sequence[int]) -> str:
    """What a client is told of `tokens`: special ones left out, broken characters as U+FFFD."""
    tokenizer = WordTokenizer()
    return tokenizer.decode([token for token in tokens if token not in tokenizer.special])
