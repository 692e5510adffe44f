"""Points: an arm fires at its nth passage, once, and hits the process it names."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.chaos import points
from tests.chaos.seams import catalog

PASSES = """
import sys
from pathlib import Path
from tests.chaos.points import Points
made = Points(Path(sys.argv[1]), "p")
for passage in range(5):
    made.reach("here")
    print(passage, flush=True)
"""


def passing(directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PASSES, str(directory)]
    return subprocess.run(command, capture_output=True, text=True, start_new_session=True, timeout=60)


def armed(directory: Path, **changes: object) -> None:
    points.arm(directory, "p", [{"id": "a", "point": "here", "nth": 3, "signal": 9, "victim": None, **changes}])


def test_a_process_dies_at_the_nth_passage_and_only_once(tmp_path: Path) -> None:
    armed(tmp_path)
    died = passing(tmp_path)
    assert (died.returncode, died.stdout.split()) == (-signal.SIGKILL, ["0", "1"])
    told = points.fired(tmp_path, "a")
    assert told is not None
    assert told["point"] == "here"
    assert passing(tmp_path).stdout.split() == ["0", "1", "2", "3", "4"]


def test_other_points_and_disarmed_ones_do_nothing(tmp_path: Path) -> None:
    armed(tmp_path, point="there")
    assert passing(tmp_path).returncode == 0
    assert points.fired(tmp_path, "a") is None
    points.arm(tmp_path, "p", [])
    assert passing(tmp_path).returncode == 0


def test_the_named_victim_is_hit_and_no_later_process_of_its_number(tmp_path: Path) -> None:
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    armed(tmp_path, victim={"pid": victim.pid, "start": points.started(victim.pid) + 1})
    assert passing(tmp_path).returncode == 0
    time.sleep(0.1)
    assert victim.poll() is None
    (tmp_path / "fired-a").unlink()
    armed(tmp_path, victim={"pid": victim.pid, "start": points.started(victim.pid)})
    assert passing(tmp_path).returncode == 0
    assert victim.wait(10) == -signal.SIGKILL
    assert points.started(victim.pid) == 0
    assert points.started(os.getpid())


def test_a_fired_file_may_be_read_while_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "fired-a").touch()
    assert points.fired(tmp_path, "a") == {}
    (tmp_path / "fired-a").write_text(json.dumps({"point": "x"}))
    assert points.fired(tmp_path, "a") == {"point": "x"}


def test_every_redis_function_and_rpc_can_be_armed() -> None:
    found = catalog()
    assert {"redis:unit_settle:before", "redis:unit_settle:after", "send:execute", "reply:execute"} <= set(
        found["scheduler"]
    )
    assert {"serve:Execute", "answer:Execute", "fsync:before", "rename:after"} <= set(found["trainer"])
    assert all(len(names) == len(set(names)) for names in found.values())
