"""Signed download links: whoever changes a part of one, or waits too long, holds nothing."""

from __future__ import annotations

import time
from urllib.parse import parse_qs, urlsplit

import pytest

from services.common.errors import Forbidden
from services.common.tinker_path import TinkerPath
from services.gateway.links import LINK_SECONDS, Links, Target, end_of_links

TARGET = Target(TinkerPath("run", "weights", "name"), "_version_name_0", "file")


def signature(links: Links, target: Target, expires: int) -> str:
    return parse_qs(urlsplit(links.relative(target, expires)).query)["signature"][0]


def test_a_link_of_one_replica_holds_on_another() -> None:
    later = int(time.time()) + 60
    Links(b"p" * 32).check(TARGET, str(later), signature(Links(b"p" * 32), TARGET, later))


def test_a_link_under_another_pepper_does_not_hold() -> None:
    later = int(time.time()) + 60
    with pytest.raises(Forbidden):
        Links(b"q" * 32).check(TARGET, str(later), signature(Links(b"p" * 32), TARGET, later))


def test_an_old_link_does_not_hold() -> None:
    links, past = Links(b"p" * 32), int(time.time()) - 1
    with pytest.raises(Forbidden, match="too old"):
        links.check(TARGET, str(past), signature(links, TARGET, past))


@pytest.mark.parametrize(
    "other",
    [
        TARGET._replace(file=""),
        TARGET._replace(file="file2"),
        TARGET._replace(account="another"),
        TARGET._replace(version="_version_name_1"),
        TARGET._replace(path=TinkerPath("run", "weights", "nam")),
        TARGET._replace(path=TinkerPath("runweights", "", "name")),
    ],
)
def test_no_two_targets_share_a_signature(other: Target) -> None:
    links, later = Links(b"p" * 32), int(time.time()) + 60
    assert signature(links, TARGET, later) != signature(links, other, later)


@pytest.mark.parametrize("expires", ["", "x", "-1", "1e9", "9" * 13, "٣"])
def test_an_end_that_is_no_time_does_not_hold(expires: str) -> None:
    with pytest.raises(Forbidden):
        Links(b"p" * 32).check(TARGET, expires, "0" * 64)


def test_links_end_with_their_checkpoint() -> None:
    now = time.time()
    assert end_of_links(int(now * 1000) + 5_000) <= now + 5
    assert end_of_links(0) == pytest.approx(now + LINK_SECONDS, abs=2)
    assert end_of_links(int(now * 1000) + 10**9) == pytest.approx(now + LINK_SECONDS, abs=2)
