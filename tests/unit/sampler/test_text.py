"""Text told token by token is the text of all tokens, however characters and stop strings are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from services.sampler.text import TokenText
from tests.doubles.tokenizer import WordTokenizer

DOUBLE = WordTokenizer()
END = 0
TEXTS = st.text(
    st.one_of(
        st.sampled_from("ab \n.éßñ世界語👋🏽👩‍👧🇩🇪e\u0301\u0300\u200dक्षิ\ufffd"),
        st.characters(exclude_categories=["Cs"]),
    )
)
MORE = settings(max_examples=300, deadline=None)


class Bytes:
    """One token per piece of bytes; a text is cut anywhere, characters too. Token 0 is special."""

    special = frozenset({END})

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = [b"<|end|>", *pieces]

    def decode(self, tokens: Sequence[int]) -> str:
        return b"".join(self.pieces[token] for token in tokens if token < len(self.pieces)).decode(errors="replace")


class Trained:
    """A real tokenizer of the library, as HF models bring them."""

    special = frozenset({END})

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)


CORPUS = ["the cat sat on the mat, and the dog said: hello world", "世界 こんにちは", "naïve café 👋"]


def byte_level() -> Trained:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return Trained(tokenizer)


def metaspace() -> Trained:
    """As Llama 2: a space belongs to the token after it, the first one is dropped, other bytes are tokens <0x..>."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=340, special_tokens=["<|end|>", "<unk>", *fallback], show_progress=False)
    tokenizer.train_from_iterator(CORPUS[:1], trainer)
    return Trained(tokenizer)


def told(decoder: object, tokens: Sequence[int], stops: Sequence[str] = (), seam: int = 0) -> tuple[str, int]:
    """(text, tokens taken until a stop string was complete)."""
    text = TokenText(decoder, stops, tokens[:seam])  # type: ignore[arg-type]
    made = ""
    for count, token in enumerate(tokens[seam:], start=1):
        made += text.push(token)
        if text.stopped:
            return made, count
    return made + text.flush(), len(tokens) - seam


def said(decoder: Bytes | Trained | WordTokenizer, tokens: Sequence[int]) -> str:
    return decoder.decode([token for token in tokens if token not in decoder.special])


@st.composite
def cut_text(draw: Callable, texts: st.SearchStrategy[str] = TEXTS) -> tuple[Bytes, list[int]]:
    """A text's bytes cut at random places into tokens, special ones among them."""
    data = draw(texts).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)))) | {0, len(data)})
    pieces = [data[start:end] for start, end in zip(cuts, cuts[1:], strict=False)]
    tokens = list(range(1, len(pieces) + 1))
    for place in draw(st.lists(st.integers(0, len(tokens)), max_size=2)):
        tokens.insert(place, END)
    return Bytes(pieces), tokens


@MORE
@given(cut_text())
def test_joined_pieces_are_the_whole_text_PDR_14(cut: tuple[Bytes, list[int]]) -> None:
    decoder, tokens = cut
    assert told(decoder, tokens) == (said(decoder, tokens), len(tokens))


@MORE
@given(cut_text())
def test_no_piece_holds_half_a_character(cut: tuple[Bytes, list[int]]) -> None:
    """Only what the text itself says, or its end cut off, is told as U+FFFD."""
    decoder, tokens = cut
    text, whole = TokenText(decoder), said(decoder, tokens)
    pieces = [text.push(token) for token in tokens]
    assert whole.startswith("".join(pieces))


@MORE
@given(st.lists(st.one_of(st.integers(0, 511), st.sampled_from([0xE4, 0xF0, 0x9F, 0x80, 600]))))
@example([0xF0, 0x9F, 600, 600, 600, 0x98, 0x80])
def test_any_tokens_at_all_come_to_their_text(tokens: list[int]) -> None:
    """Bytes that are no characters too, in runs of any length, and ids the tokenizer does not know."""
    assert told(DOUBLE, tokens)[0] == said(DOUBLE, tokens)


@settings(max_examples=100, deadline=None)
@given(TEXTS)
@pytest.mark.parametrize("decoder", [byte_level(), metaspace()], ids=["byte level", "metaspace"])
def test_tokenizers_of_the_library_agree_with_their_whole_decoding(decoder: Trained, text: str) -> None:
    tokens = decoder.tokenizer.encode(text).ids
    assert told(decoder, tokens)[0] == said(decoder, tokens)


def test_a_space_that_belongs_to_a_token_after_a_special_one_is_told() -> None:
    decoder = metaspace()
    first, second = decoder.tokenizer.encode("the").ids, decoder.tokenizer.encode("cat").ids
    assert told(decoder, [*first, END, 10**6, *second])[0] == "the cat"


def test_a_character_is_told_with_its_last_byte() -> None:
    text = TokenText(DOUBLE)
    assert [text.push(token) for token in "a👋é".encode()] == ["a", "", "", "", "👋", "", "é"]


def test_bytes_that_never_become_characters_do_not_pile_up() -> None:
    text, told_so_far = TokenText(DOUBLE), 0
    for count in range(1, 500):
        told_so_far += len(text.push(0xFF))
        assert told_so_far >= count - 8


def test_an_unfinished_character_at_the_end_is_told_as_one_that_is_broken() -> None:
    assert told(DOUBLE, list("x世".encode()[:-1])) == ("x\ufffd", 3)


def by_characters(whole: str, stops: Sequence[str]) -> str:
    """What is left of `whole` when it is read by single characters until one of `stops` is complete."""
    for end in range(len(whole) + 1):
        found = [stop for stop in stops if whole[:end].endswith(stop)]
        if found:
            return whole[: end - max(map(len, found))]
    return whole


WORDS = st.text("ab世", min_size=1, max_size=4)


@MORE
@given(cut_text(st.text("ab世")), st.lists(WORDS, min_size=1, max_size=3))
def test_stop_strings_are_found_over_any_seam_and_left_out(cut: tuple[Bytes, list[int]], stops: list[str]) -> None:
    decoder, tokens = cut
    tokens = [token for token in tokens if token != END]
    text, taken = told(decoder, tokens, stops)
    whole = said(decoder, tokens)
    assert text == by_characters(whole, stops)
    if text != whole:  # at the first token that ends a character with which one is complete, as the engine does
        ends = [n for n in range(1, len(tokens) + 1) if not said(decoder, tokens[:n]).endswith("\ufffd")]
        assert taken == next(n for n in ends if any(stop in said(decoder, tokens[:n]) for stop in stops))


@MORE
@given(cut_text(st.text("ab世")), st.lists(WORDS, min_size=1, max_size=3))
def test_nothing_told_is_ever_taken_back_by_a_stop(cut: tuple[Bytes, list[int]], stops: list[str]) -> None:
    decoder, tokens = cut
    text, pieces = TokenText(decoder, stops), ""
    final = told(decoder, tokens, stops)[0]
    for token in tokens:
        pieces += text.push(token)
        assert final.startswith(pieces)
        if text.stopped:
            break


@MORE
@given(cut_text(st.text("ab世")), st.lists(WORDS, max_size=3), st.data())
def test_two_legs_tell_together_what_one_tells_PDR_14(
    cut: tuple[Bytes, list[int]], stops: list[str], data: st.DataObject
) -> None:
    """The first leg tells what is safe and holds back the rest; the second starts from the first one's tokens."""
    decoder, tokens = cut
    seam = data.draw(st.integers(0, len(tokens)))
    first = TokenText(decoder, stops)
    before = ""
    for token in tokens[:seam]:
        before += first.push(token)
        if first.stopped:
            return  # then there is no second leg
    after, taken = told(decoder, tokens, stops, seam)
    assert (before + after, seam + taken) == told(decoder, tokens, stops)


def test_a_stop_string_of_a_special_token_is_matched_and_never_told() -> None:
    assert told(DOUBLE, [*b"ok", END, *b"more"], ["<|end|>"]) == ("ok", 3)
    assert told(DOUBLE, [*b"ok", END, *b"more"], ["k<|end|>m"]) == ("o", 4)
    assert told(DOUBLE, [*b"ok", END, *b"more"], ["k<|end|>x"]) == ("okmore", 7)


def test_what_may_become_a_stop_string_waits_until_it_did_not() -> None:
    text = TokenText(DOUBLE, ["STOP"])
    assert [text.push(token) for token in b"xSTSTAR"] == ["x", "", "", "ST", "", "STA", "R"]
    assert [text.push(token) for token in b"ST"] == ["", ""]
    assert text.flush() == "ST"


def test_a_stop_string_that_was_complete_before_the_seam_stops_nothing_after_it() -> None:
    assert told(DOUBLE, list(b"aSTOPb"), ["STOP"], seam=5) == ("b", 1)
