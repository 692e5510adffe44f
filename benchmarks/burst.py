"""2,048 samples of one unmodified SDK client at once against the real mesh on a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.figure import Figure, quantile
from benchmarks.mesh import PROCESSES, RunningMesh, real
from benchmarks.processes import peak_rss, rss_mib
from benchmarks.sockets import watched_connections
from services.common.ids import key_hash, parse_sampling_session_id
from services.scheduler.store import keys
from tools.make_tiny_qwen3 import build

NAME = "tinkermesh/tiny"
COUNT, QUICK_COUNT, MAX_TOKENS = 2048, 256, 16
SECONDS = 600.0
WATCHED = (*PROCESSES, "sampler")


def run(quick: bool) -> list[Figure]:
    count = QUICK_COUNT if quick else COUNT
    with tempfile.TemporaryDirectory(prefix="tinkermesh-tiny-") as directory:
        model = build(Path(directory) / "tiny-qwen3")
        with real(model, NAME, sampler=True) as mesh:
            return _measured(mesh, count)


def _measured(mesh: RunningMesh, count: int) -> list[Figure]:
    pids = mesh.pids(WATCHED)
    rest = {name: rss_mib(pid) for name, pid in pids.items()}
    port = int(mesh.base_url.rsplit(":", 1)[1])
    with watched_connections([pids["gateway-0"]], port) as connections, peak_rss(pids) as peaks:
        report = _burst(mesh, count)
    note = f"{count} samples of {MAX_TOKENS} tokens, prompts of 256 tokens in groups of 16"
    late = _wakeups(mesh.redis_url, report["samples"])
    tokens = sum(made for _, made, _ in report["samples"])
    return [
        Figure("all delivered after", [report["seconds"]], "s", note=note),
        Figure("sampled tokens", [tokens / report["seconds"]], "tokens/s", note="the engine included"),
        Figure("open connections, most", [max(connections)], "", "<= 60", note="one SDK client, 1 gateway"),
        Figure("open connections, median", [quantile(list(map(float, connections)), 0.5)], "", note=note),
        Figure("settlement to the SDK's result, p50", [quantile(late, 0.5)], "ms", note=note),
        Figure("settlement to the SDK's result, p99", [quantile(late, 0.99)], "ms", note=note),
        Figure("client at most", [report["rss_mib"]], "MiB", note=f"SDK {report['sdk']}"),
        *(Figure(f"{n} at most", [peaks[n]], "MiB", note=f"{rest[n]:.0f} MiB at rest") for n in WATCHED),
    ]


def _burst(mesh: RunningMesh, count: int) -> dict[str, Any]:
    """Raises subprocess.CalledProcessError or TimeoutExpired when the client does not get all of them."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "benchmarks.burst_client", "--base-model", NAME, "--report", file.name]
        command += ["--count", str(count), "--max-tokens", str(MAX_TOKENS)]
        variables = {**os.environ, **mesh.mesh.client_environment, "TINKER_TELEMETRY": "0", "NO_PROXY": "127.0.0.1"}
        subprocess.run(command, env=variables, check=True, timeout=SECONDS, stdout=sys.stderr)
        report: dict[str, Any] = json.loads(Path(file.name).read_text())
    return report


def _wakeups(redis_url: str, samples: list[tuple[str, int, float]]) -> list[float]:
    """Milliseconds from each settlement, by Redis' own clock on this machine, to the SDK's result."""
    with Redis.from_url(redis_url) as redis:
        pipe = redis.pipeline(transaction=False)
        for sequence_id, _, _ in samples:
            session, seq, _ = sequence_id.rsplit(".", 2)
            pipe.hget(
                keys.req(parse_sampling_session_id(session).pool, key_hash("sample", session, int(seq))), "settled_ms"
            )
        settled = pipe.execute()
    return [1000 * at - int(when) for (_, _, at), when in zip(samples, settled, strict=True)]
