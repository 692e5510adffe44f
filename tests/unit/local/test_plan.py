"""The plan is pure: settings and addresses in, child processes out."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from services.common.errors import InvalidInput
from services.common.keyring import Keyring, load_pepper
from services.common.settings import from_environment
from services.local import addresses, state
from services.local.plan import plan
from services.local.settings import LocalSettings
from services.local.spec import ChildSpec, Stage, StopRank
from services.sampler.settings import Settings as SamplerSettings
from services.scheduler.settings import Settings as SchedulerSettings
from tests.doubles.known_keys import tenant_of

LEGS = ("prefill", "decode")


def settings(tmp_path: Path, **options: object) -> LocalSettings:
    fields: dict[str, object] = {
        "model": Path("/models/m"), "model_name": "org/m", "state_dir": tmp_path / "state", "port": 0,
        "redis_port": 0, "scheduler_port": 0, "trainer_port": 0, "sampler_port": 0,
    }  # fmt: skip
    return LocalSettings(**{**fields, **options})  # type: ignore[arg-type]


def planned(tmp_path: Path, **options: object) -> dict[str, ChildSpec]:
    chosen = settings(tmp_path, **options)
    reserved = addresses.reserve(chosen)
    with reserved.gateway:
        return {spec.name: spec for spec in plan(chosen, reserved)}


def test_replicas_have_names_ports_and_port_files_of_their_own(tmp_path: Path) -> None:
    specs = planned(tmp_path, gateways=2, schedulers=3)
    schedulers = [specs[f"scheduler-{n}"] for n in range(3)]
    assert len({spec.address for spec in schedulers}) == 3
    assert len({spec.port_file for spec in specs.values() if spec.port_file}) == len(specs) - 1
    listed = ",".join(spec.address for spec in schedulers)
    assert specs["gateway-1"].environment["TINKERMESH_GATEWAY_SCHEDULER"] == listed
    assert specs["trainer"].environment["TINKERMESH_TRAINER_SCHEDULERS"] == listed


def test_gateway_replicas_inherit_one_listening_socket(tmp_path: Path) -> None:
    specs = planned(tmp_path, gateways=2)
    descriptors = {specs[name].environment["TINKERMESH_GATEWAY_LISTEN_FD"] for name in ("gateway-0", "gateway-1")}
    assert len(descriptors) == 1
    assert specs["gateway-0"].inherit == specs["gateway-1"].inherit != ()


def test_only_the_gateway_listens_beyond_this_machine_SEC_09(tmp_path: Path) -> None:
    specs = planned(tmp_path, host="0.0.0.0", schedulers=2)
    inner = [spec for name, spec in specs.items() if not name.startswith("gateway")]
    assert {spec.address.rpartition(":")[0] for spec in inner} == {"127.0.0.1"}
    for spec in inner:
        assert "0.0.0.0" not in [*spec.command, *spec.environment.values()]
    assert specs["gateway-0"].address.startswith("127.0.0.1:")  # as clients on this machine reach it


def test_trainer_and_sampler_agree_on_the_pool(tmp_path: Path) -> None:
    specs = planned(tmp_path)
    for field in ("MODEL_PATH", "BASE_MODEL", "ALIASES", "STORE_ROOT", "MAX_CONTEXT", "MAX_RANK"):
        trainer = specs["trainer"].environment[f"TINKERMESH_TRAINER_{field}"]
        assert trainer == specs["sampler"].environment[f"TINKERMESH_SAMPLER_{field}"]


def test_aliases_and_the_directory_name_the_model_to_both_engines(tmp_path: Path) -> None:
    specs = planned(tmp_path, aliases=("org/other", "org/m"))
    assert specs["trainer"].environment["TINKERMESH_TRAINER_ALIASES"] == "/models/m,org/other"
    assert specs["sampler"].environment["TINKERMESH_SAMPLER_ALIASES"] == "/models/m,org/other"


def test_state_starts_first_and_stops_last(tmp_path: Path) -> None:
    specs = planned(tmp_path)
    assert [n for n, spec in specs.items() if spec.stage is Stage.STATE] == ["redis"]
    assert max(specs.values(), key=lambda spec: spec.stop_rank).name == "redis"
    assert min(specs.values(), key=lambda spec: spec.stop_rank).stop_rank is StopRank.GATEWAY


def test_redis_acknowledges_only_what_is_on_disk_and_evicts_nothing(tmp_path: Path) -> None:
    command = planned(tmp_path)["redis"].command
    assert command[command.index("--appendfsync") + 1] == "always"
    assert command[command.index("--maxmemory-policy") + 1] == "noeviction"


def test_no_sampler_leaves_it_out_and_the_schedulers_know(tmp_path: Path) -> None:
    specs = planned(tmp_path, sampler=False)
    assert "sampler" not in specs
    variables = [specs["scheduler-0"].environment, planned(tmp_path)["scheduler-0"].environment]
    assert [from_environment(SchedulerSettings, "scheduler", found).samplers for found in variables] == [False, True]


def test_prefill_and_decode_are_two_samplers_on_one_tier_SAMP_06(tmp_path: Path) -> None:
    """Negative control: a sampler of both roles has no tier."""
    chosen = settings(tmp_path, prefill_decode=True)
    reserved = addresses.reserve(chosen)
    with reserved.gateway:
        specs = {spec.name: spec for spec in plan(chosen, reserved)}
    found = [
        from_environment(SamplerSettings, "sampler", specs[f"sampler-{role}"].environment).check() for role in LEGS
    ]
    assert [one.role for one in found] == list(LEGS)
    assert found[0].listen != found[1].listen
    (tier,) = {(one.kv_directory, one.kv_hash_seed, one.redis_url) for one in found}
    assert tier[0] == str(chosen.kv_directory) and tier[2] == f"redis://{reserved.redis}/0"
    assert {"sampler-prefill", "sampler-decode"} <= set(reserved.metrics) and "sampler" not in specs
    alone = from_environment(SamplerSettings, "sampler", planned(tmp_path)["sampler"].environment)
    assert (alone.role, alone.kv_directory) == ("both", "")


def test_taken_port_is_refused_naming_the_option(tmp_path: Path) -> None:
    taken = addresses.listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(InvalidInput, match=f"--redis-port: 127.0.0.1:{port} cannot be used"):
        addresses.reserve(settings(tmp_path, redis_port=port))
    taken.close()


def test_a_second_mesh_hears_of_all_its_taken_ports_and_of_the_remedy_at_once(tmp_path: Path) -> None:
    with addresses.reserve(settings(tmp_path)).gateway as first, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [taken.getsockname()[1] for taken in (first, other)]
        with pytest.raises(InvalidInput) as caught:
            addresses.reserve(settings(tmp_path, port=ports[0], trainer_port=ports[1]))
    for option, port in zip(("--port", "--trainer-port"), ports, strict=True):
        assert f"{option}: 127.0.0.1:{port} cannot be used" in caught.value.message
    assert "--port 0 --trainer-port 0 takes free ones" in caught.value.message
    assert "--state-dir of its own" in caught.value.message


def test_replica_ports_beyond_the_last_one_are_refused_naming_the_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--scheduler-port: 127.0.0.1:65537 cannot be used: ports end at 65535"):
        addresses.reserve(settings(tmp_path, scheduler_port=65_527, schedulers=2))


def test_default_key_is_admitted_and_stored_only_as_a_digest_SEC_02(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    lock = state.prepare(chosen)
    ring = Keyring(chosen.key_file, load_pepper(chosen.pepper_file))
    assert tenant_of(ring, state.DEFAULT_KEY)
    assert state.DEFAULT_KEY not in chosen.key_file.read_text()
    assert chosen.pepper_file.stat().st_mode & 0o077 == 0
    assert chosen.state_dir.stat().st_mode & 0o077 == 0
    lock.close()


def test_second_mesh_on_one_state_directory_is_refused(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    lock = state.prepare(chosen)
    with pytest.raises(InvalidInput, match="another mesh runs"):
        state.prepare(chosen)
    lock.close()
    state.prepare(chosen).close()


def test_free_ports_are_distinct_and_safe_from_outgoing_connections() -> None:
    ports = [addresses.free_port() for _ in range(200)]
    assert len(set(ports)) == 200
    assert all(port in addresses.QUIET_PORTS for port in ports)


def test_every_trainer_is_a_cell_with_a_name_and_a_port_of_its_own_GAP_17(tmp_path: Path) -> None:
    specs = planned(tmp_path, trainers=3)
    trainers = [specs[name] for name in ("trainer", "trainer-1", "trainer-2")]
    assert [spec.environment["TINKERMESH_TRAINER_CELL"] for spec in trainers] == ["0", "1", "2"]
    assert len({spec.environment["TINKERMESH_TRAINER_LISTEN"] for spec in trainers}) == 3
    assert len({spec.command for spec in trainers}) == 1
    assert {spec.stop_rank for spec in trainers} == {StopRank.TRAINER}
