"""A rank's vote has one size whatever it says: ranks that gather unequal votes would wait for ever."""

from __future__ import annotations

import pytest

from services.trainer.control import VOTE_BYTES, decode_vote, encode_vote
from services.trainer.failures import Status


@pytest.mark.parametrize("letter", ["a", "é", "€", "😀", "\x00", '"', "\\"])
def test_every_vote_has_one_size_and_keeps_what_fits(letter: str) -> None:
    said = Status(ok=False, user=True, message=letter * 5000)
    word = encode_vote(said)
    assert len(word) == VOTE_BYTES
    heard = decode_vote(word)
    assert (heard.ok, heard.user) == (False, True)
    assert len(heard.message) >= 400
    assert said.message.startswith(heard.message)


def test_short_vote_is_heard_as_it_was_said() -> None:
    for said in (Status(), Status(ok=False, message="pass: naïve text [0, 3)")):
        assert decode_vote(encode_vote(said)) == said
