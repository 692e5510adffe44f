"""What a soak counts: a kill is over when work that was sent after it has settled."""

from __future__ import annotations

import os
import time

from tests.chaos.figures import Figures
from tests.chaos.history import make
from tests.chaos.real import real_history
from tests.chaos.summary import summary


def test_work_sent_before_a_kill_does_not_end_it() -> None:
    figures = Figures()
    before = time.monotonic()
    figures.struck("trainer", stopped=False)
    figures.settled(before)
    assert not figures.resumed
    figures.settled(time.monotonic())
    figures.settled(time.monotonic())
    assert [len(values) for values in figures.resumed.values()] == [1]
    figures.memory("trainer", os.getpid())
    figures.memory("gateway-0", 0)
    told = figures.report(2)
    assert told["kills"] == {"trainer": 1}
    assert told["memory"].keys() == {"trainer"}
    assert "violations   2" in figures.text(2)


def test_a_campaign_says_what_struck_and_which_seeds_were_bad() -> None:
    fault = {"signal": "kill", "victim": "", "holder": "trainer", "where": "serve:Execute"}
    missed = {"signal": "kill", "victim": "gateway-0", "holder": "", "where": ""}
    common = {"commands": 3, "answers": {"200": 5}}
    results = [
        {"seed": 1, "faults": [fault, missed], "violations": [], **common},
        {"seed": 2, "faults": [{**fault, "where": "time", "victim": "gateway-1"}], "violations": ["x"], **common},
    ]
    text = summary(results, 1.0)
    assert "kill gateway 1, kill trainer 1" in text
    assert "violations    1: seeds 2" in text


def test_the_real_trainer_dies_in_each_of_its_histories() -> None:
    for seed in range(1, 21):
        history = real_history(seed)
        assert any(fault.holder == "trainer" for fault in history.faults)
        assert {fault.victim for fault in history.faults} <= {
            "",
            "trainer",
            "scheduler-0",
            "scheduler-1",
            "gateway-0",
            "redis",
        }
        assert [one.seq for one in history.models[0].commands] == list(range(1, len(history.models[0].commands) + 1))
        assert history.seed == make(seed).seed
