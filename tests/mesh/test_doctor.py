"""`tinkermesh doctor` finds each planted misconfiguration, names its remedy, and finds nothing in a healthy mesh."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from services.local import cli
from services.local.endpoints import FILE, Endpoints
from services.scheduler.store import keys
from services.scheduler.store.connection import Redis, connect
from services.scheduler.store.functions import LAYOUT, Functions, Library, library
from services.scheduler.store.libraries import LibraryShelf
from tests.doubles import model_dir
from tests.doubles.certificates import Authority
from tests.doubles.grpcurl import run
from tests.doubles.mesh import MeshProcesses
from tests.doubles.small_disk import small_disk
from tests.doubles.valkey import ValkeyProcess, free_port
from tests.mesh.doctor import Answer, ask, clean, read_only, stopped

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    clean(monkeypatch)


@pytest.fixture
def down(tmp_path: Path) -> Path:
    """A healthy state directory without a running mesh."""
    return stopped(tmp_path / "state")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    model = model_dir.build(tmp_path_factory.mktemp("models") / "zeros")
    with MeshProcesses(tmp_path_factory.mktemp("mesh"), model=model) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    """A Redis of its own, to be set up badly."""
    process = ValkeyProcess(tmp_path_factory.mktemp("valkey"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
async def bad_redis(server: ValkeyProcess) -> Redis:
    client = connect(server.url)
    await client.flushall()
    for name, value in {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}.items():
        await client.config_set(name, value)
    return client


def state(directory: Path) -> tuple[str, str]:
    return "--state-dir", str(directory)


def running(mesh: MeshProcesses, *arguments: str) -> Answer:
    return ask(*state(mesh.settings.state_dir), *arguments)


# Negative controls


def test_a_healthy_running_mesh_gives_no_finding(up: MeshProcesses) -> None:
    answer = running(up)
    assert (answer.troubles(), answer.exit_code) == ([], 0)
    asked = {one.check for one in answer.findings}
    assert {"pepper", "keys", "redis eviction", "redis persistence", "function library", "clock", "store"} <= asked
    assert {
        "store space",
        "model",
        "model weights",
        "tokenizer",
        "engine torch",
        "scheduler",
        "gateway",
        "key",
    } <= asked


def test_a_healthy_machine_before_the_start_gives_no_finding(down: Path) -> None:
    answer = ask(*state(down))
    assert (answer.troubles(), answer.exit_code) == ([], 0)
    assert {"ports", "redis server", "model", "store"} <= {one.check for one in answer.findings}


def test_the_same_is_found_of_a_mesh_named_by_addresses_alone(
    up: MeshProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from another machine, or in a pod by its own variables."""
    monkeypatch.setenv("TINKER_API_KEY", up.api_key)
    monkeypatch.setenv("TINKERMESH_SCHEDULER_STORE_ROOT", str(up.settings.store))
    monkeypatch.setenv("TINKERMESH_SCHEDULER_PEPPER_FILE", str(up.settings.pepper_file))
    answer = ask("--scheduler", up.scheduler, "--url", up.base_url, "--redis", f"redis://{up.mesh.addresses.redis}/0")
    assert answer.troubles() == []
    asked = {one.check for one in answer.findings if one.level == "ok"}
    assert {"redis eviction", "clock", "store", "pepper", "scheduler", "pool double", "gateway", "key"} <= asked
    assert "state directory" not in asked and "ports" not in asked


def test_the_table_says_the_remedy_and_the_sum(down: Path) -> None:
    (down / "model" / "tokenizer.json").unlink()
    shown = CliRunner().invoke(cli.app, ["doctor", *state(down)])
    assert shown.exit_code == 1
    lines = shown.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("error"))
    assert "tokenizer" in lines[at] and "-> put the model's tokenizer.json" in lines[at + 1]
    assert lines[-1] == "1 errors, 0 warnings"


# Planted: Redis


async def test_a_redis_that_evicts_is_found(server: ValkeyProcess, bad_redis: Redis) -> None:
    await bad_redis.config_set("maxmemory-policy", "allkeys-lru")
    answer = ask("--redis", server.url)
    assert answer.troubles() == [("error", "redis eviction")]
    assert (
        "allkeys-lru" in (said := answer.remedy("redis eviction")) and "CONFIG SET maxmemory-policy noeviction" in said
    )


async def test_a_redis_without_its_append_only_file_is_found_when_durability_is_strict(
    server: ValkeyProcess, bad_redis: Redis
) -> None:
    await bad_redis.config_set("appendonly", "no")
    answer = ask("--redis", server.url)
    assert answer.troubles() == [("error", "redis persistence")]
    assert "set appendonly yes and appendfsync always" in answer.remedy("redis persistence")


async def test_a_redis_that_syncs_once_a_second_is_found_when_durability_is_strict(
    server: ValkeyProcess, bad_redis: Redis
) -> None:
    """Its WAITAOF is tried, and answers before the disk has the write."""
    await bad_redis.config_set("appendfsync", "everysec")
    answer = ask("--redis", server.url)
    assert answer.troubles() == [("error", "redis persistence")]
    assert "set appendfsync always" in answer.remedy("redis persistence")


async def test_a_full_redis_is_found(server: ValkeyProcess, bad_redis: Redis) -> None:
    used = int((await bad_redis.info("memory"))["used_memory"])
    await bad_redis.config_set("maxmemory", str(used))
    try:
        answer = ask("--redis", server.url)
    finally:
        await bad_redis.config_set("maxmemory", "0")
    assert ("error", "redis memory") in answer.troubles() and "raise maxmemory" in answer.remedy("redis memory")


def test_a_redis_that_does_not_answer_is_found() -> None:
    answer = ask("--redis", f"redis://127.0.0.1:{free_port()}")
    assert answer.troubles() == [("error", "redis")]
    assert "start Redis, or correct the address" in answer.remedy("redis")


async def test_a_redis_of_a_newer_release_is_found(server: ValkeyProcess, bad_redis: Redis) -> None:
    await bad_redis.set(keys.LAYOUT, LAYOUT + 1)
    answer = ask("--redis", server.url)
    assert answer.troubles() == [("error", "function library")]
    assert "use the tinkermesh of that release" in answer.remedy("function library")


async def test_a_replica_with_an_old_function_library_is_found(server: ValkeyProcess, bad_redis: Redis) -> None:
    mine = library()
    old = Library(f"tinkermesh_{LAYOUT}_0123456789ab", "0123456789ab", mine.source.replace(mine.digest, "0123456789ab"))
    functions = Functions(bad_redis, old)
    await functions.load()
    await LibraryShelf(bad_redis, functions, "scheduler-old").beat()
    answer = ask("--redis", server.url)
    assert answer.troubles() == [("warning", "function library")] and answer.exit_code == 0
    assert "scheduler-old" in (said := answer.remedy("function library")) and "finish the rollout" in said


def test_a_clock_an_hour_ahead_is_found(up: MeshProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that compares it with Redis' really reads another time."""
    shift = "import time\nreal = time.time_ns\ntime.time_ns = lambda: real() + 3_600_000_000_000\n"
    (tmp_path / "sitecustomize.py").write_text(shift)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    answer = running(up)
    assert answer.troubles() == [("error", "clock")]
    assert re.search(r"3[56]\d\d\.\d s apart", said := answer.remedy("clock")) and "NTP" in said


# Planted: files


def test_a_store_that_cannot_be_written_is_found(down: Path) -> None:
    with read_only(down / "store"):
        answer = ask(*state(down))
    assert ("error", "store") in answer.troubles()
    assert "write access" in answer.remedy("store")


def test_a_store_that_is_not_there_is_found(up: MeshProcesses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask("--store", str(tmp_path / "nowhere"), "--scheduler", up.scheduler)
    assert answer.troubles() == [("error", "store")] and "create or mount it" in answer.remedy("store")


def test_a_disk_that_is_nearly_full_is_found(down: Path) -> None:
    with small_disk(down / "store"):
        answer = ask(*state(down))
    assert answer.troubles() == [("error", "store space")]
    assert "make the volume larger" in answer.remedy("store space")


def test_a_state_directory_open_to_others_is_found(down: Path) -> None:
    down.chmod(0o755)
    (down / "pepper").chmod(0o644)
    answer = ask(*state(down))
    assert answer.troubles() == [("warning", "state directory"), ("error", "pepper")]
    assert f"chmod 700 {down}" in answer.remedy("state directory") and "chmod 600" in answer.remedy("pepper")


@pytest.mark.parametrize("content", [None, "short"])
def test_a_missing_or_short_pepper_is_found(down: Path, content: str | None) -> None:
    pepper = down / "pepper"
    pepper.unlink() if content is None else pepper.write_text(content)
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "pepper")] and "restore it from the copy" in answer.remedy("pepper")


def test_a_broken_key_file_is_found(down: Path) -> None:
    (down / "keys.json").write_text("{")
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "keys")] and "restore the file" in answer.remedy("keys")


# Planted: the model


def test_a_missing_tokenizer_is_found(down: Path) -> None:
    (down / "model" / "tokenizer.json").unlink()
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "tokenizer")]
    assert "put the model's tokenizer.json" in answer.remedy("tokenizer")


def test_a_tokenizer_of_another_model_is_found(down: Path) -> None:
    model_dir.write_json(down / "model" / "tokenizer.json", model_dir.tokenizer(model_dir.VOCABULARY))
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "tokenizer")] and "this very model" in answer.remedy("tokenizer")


def test_weights_that_were_cut_off_are_found(down: Path) -> None:
    weights = down / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "model weights")]
    assert "cut off" in (said := answer.remedy("model weights")) and "copy the model's directory again" in said


def test_weights_of_another_vocabulary_and_a_missing_shard_are_found(down: Path) -> None:
    (down / "model" / "model.safetensors").write_bytes(model_dir.weights(model_dir.VOCABULARY + 1))
    assert "embedding" in ask(*state(down)).remedy("model weights")
    index = {"weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    model_dir.write_json(down / "model" / "model.safetensors.index.json", index)
    assert "model-00002-of-00002.safetensors, not there" in ask(*state(down)).remedy("model weights")


def test_a_directory_without_a_model_and_an_architecture_nobody_trains_are_found(down: Path, tmp_path: Path) -> None:
    answer = ask(*state(down), "--model", str(tmp_path / "nothing"))
    assert answer.troubles() == [("error", "model")] and "--model" in answer.remedy("model")
    config = {"architectures": ["MixtralForCausalLM"], "vocab_size": 64, "hidden_size": 4}
    model_dir.write_json(down / "model" / "config.json", {**config, "max_position_embeddings": 128})
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "model")] and "Qwen3ForCausalLM" in answer.remedy("model")


# Planted: this machine


def test_another_release_of_an_engine_is_found(down: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = tmp_path / "packages" / "vllm-0.11.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.11.0\n")
    monkeypatch.syspath_prepend(str(installed.parent))
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "engine vllm")]
    assert "0.11.0" in (said := answer.remedy("engine vllm")) and "install vllm==0.32.*" in said


def test_a_gpu_whose_driver_does_not_answer_is_found(
    down: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    answer = ask(*state(down))
    assert answer.troubles() == [("error", "gpu")]
    assert "version mismatch" in (said := answer.remedy("gpu")) and "load the driver" in said


def test_a_port_in_use_is_found(down: Path) -> None:
    last = msgspec.json.decode((down / "run" / FILE).read_bytes(), type=Endpoints)
    host, _, port = last.trainers[0].rpartition(":")
    with socket.socket() as taker:
        taker.bind((host, int(port)))
        taker.listen()
        answer = ask(*state(down))
    assert answer.troubles() == [("error", "ports")]
    assert f"sport = :{port}" in (said := answer.remedy("ports")) and "--trainer-port 0" in said


@pytest.mark.parametrize(
    ("days", "level", "check", "says"),
    [(-1, "error", "certificate", "renew it"), (3, "warning", "certificate", "renew it"), (18, "", "", "")],
)
def test_a_certificate_that_has_ended_or_soon_will_is_found(
    down: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, level: str, check: str, says: str
) -> None:
    for name, value in Authority(tmp_path).issue("mesh", days=days).environment().items():
        monkeypatch.setenv(name, value)
    answer = ask(*state(down))
    assert answer.troubles() == ([(level, check)] if level else [])
    assert says in answer.remedy("certificate")


def test_a_certificate_of_another_authority_name_or_key_is_found(
    down: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    good = ours.issue("mesh", days=18).environment()
    planted = {
        "take ca.crt of the issuer": {
            "TINKERMESH_TLS_CA_FILE": theirs.issue("x").environment()["TINKERMESH_TLS_CA_FILE"]
        },
        "issue it for the name other": {"TINKERMESH_TLS_SERVER_NAME": "other"},
        "issue both anew": {"TINKERMESH_TLS_KEY_FILE": ours.issue("y").environment()["TINKERMESH_TLS_KEY_FILE"]},
        "set all of TINKERMESH_TLS_CERT_FILE": {"TINKERMESH_TLS_KEY_FILE": ""},
    }
    for remedy, change in planted.items():
        for name, value in (good | change).items():
            monkeypatch.setenv(name, value)
        answer = ask(*state(down))
        assert answer.troubles() == [("error", "certificate")] and remedy in answer.remedy("certificate"), remedy


# Planted: the parts


def test_a_scheduler_out_of_reach_is_found(up: MeshProcesses) -> None:
    answer = ask("--scheduler", f"{up.scheduler},127.0.0.1:{free_port()}")
    assert answer.troubles() == [("error", "scheduler")]
    assert "start it" in answer.remedy("scheduler")


def test_a_gateway_out_of_reach_is_found() -> None:
    answer = ask("--url", f"http://127.0.0.1:{free_port()}")
    assert answer.troubles() == [("error", "gateway")] and "start it" in answer.remedy("gateway")


def test_a_wrong_key_is_found(up: MeshProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-of-another-mesh")
    answer = ask("--url", up.base_url)
    assert answer.troubles() == [("error", "key")]
    assert "tinkermesh keys create" in (said := answer.remedy("key")) and "tml-of" not in said


def test_a_drained_trainer_is_found(up: MeshProcesses) -> None:
    body = """{"pool": "double", "trainer_id": "trainer-double"}"""
    call = f"grpcurl -plaintext -d '{body}' {up.scheduler} tinkermesh.v1.Admin"
    assert run(f"{call}/DrainTrainer", {}).returncode == 0
    try:
        answer = ask("--scheduler", up.scheduler)
    finally:
        assert run(f"{call}/ResumeTrainer", {}).returncode == 0
    assert answer.troubles() == [("warning", "pool double")] and "ResumeTrainer" in answer.remedy("pool double")


def test_a_password_in_the_command_line_is_refused(down: Path) -> None:
    refused = CliRunner().invoke(cli.app, ["doctor", *state(down), "--redis", "redis://:secret@127.0.0.1"])
    assert refused.exit_code == 1 and "TINKERMESH_SCHEDULER_REDIS_URL" in refused.stderr
    assert "secret" not in refused.output + refused.stderr
