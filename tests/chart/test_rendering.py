"""What holds for every object, whatever the values."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.chart.helm import CHART, EXAMPLES, FULLNAME, Rendered, at, binary, example, merged, refusal, render, run
from tests.chart.switches import BASE, JAEGER, NODES

ALL = [BASE, merged(BASE, JAEGER), merged(BASE, NODES), *[example(path) for path in EXAMPLES]]
NAMES = ["base", "jaeger", "nodes", *[path.stem for path in EXAMPLES]]
MESH = ("gateway", "scheduler", "trainer", "sampler")


@pytest.fixture(params=ALL, ids=NAMES)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(request.param)


def test_every_container_runs_without_rights(rendered: Rendered) -> None:
    for owner, template in rendered.pod_templates().items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, owner
        assert spec["securityContext"]["runAsNonRoot"] is True, owner
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, owner
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True, owner
            assert context["allowPrivilegeEscalation"] is False, owner
            assert context["capabilities"] == {"drop": ["ALL"]}, owner
            assert "limits" in container["resources"] and "requests" in container["resources"], owner


def test_every_container_has_a_place_for_temporary_files(rendered: Rendered) -> None:
    for owner, template in rendered.pod_templates().items():
        mounts = {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
        assert "/tmp" in mounts, owner


def test_every_port_names_its_protocol(rendered: Rendered) -> None:
    """Server-side apply merges ports by number and protocol, and fails on older servers when one is left out."""
    ports = [p for o in rendered.of_kind("Service") for p in o["spec"]["ports"]]
    ports += [p for t in rendered.pod_templates().values() for c in t["spec"]["containers"] for p in c.get("ports", [])]
    assert ports and all(port["protocol"] == "TCP" for port in ports)


def test_every_quantity_is_text(rendered: Rendered) -> None:
    """As a number it fails a server-side apply on older servers; the real one of tests/kube says so."""
    for owner, template in rendered.pod_templates().items():
        for container in template["spec"]["containers"]:
            for part in container["resources"].values():
                assert all(isinstance(quantity, str) for quantity in part.values()), (owner, part)


def test_services_select_the_pods_they_are_for(rendered: Rendered) -> None:
    labels = [template["metadata"]["labels"] for template in rendered.pod_templates().values()]
    for service in rendered.of_kind("Service"):
        wanted = service["spec"]["selector"].items()
        component = service["spec"]["selector"]["app.kubernetes.io/component"]
        chosen = [found for found in labels if wanted <= found.items()]
        assert chosen and {found["app.kubernetes.io/component"] for found in chosen} == {component}


def test_only_the_mesh_reaches_grpc_and_redis(rendered: Rendered) -> None:
    """SEC: nothing behind the gateway asks for a key."""
    policies = {
        p["metadata"]["name"].removeprefix(f"{FULLNAME}-"): p["spec"] for p in rendered.of_kind("NetworkPolicy")
    }
    components = {
        t["metadata"]["labels"]["app.kubernetes.io/component"]: t["metadata"]["labels"]
        for t in rendered.pod_templates().values()
    }
    for component in set(components) - {"test"}:
        assert policies[component]["podSelector"]["matchLabels"].items() <= components[component].items()
    for component, policy in policies.items():
        for rule in policy["ingress"]:
            assert component == "gateway" or rule["from"], f"{component} is open to everyone"
    if "redis" in policies:
        sources = [source["podSelector"]["matchLabels"] for source in policies["redis"]["ingress"][0]["from"]]
        assert sources[0]["app.kubernetes.io/component"] == "scheduler"
        assert {source.get("tinkermesh.dev/role") for source in sources[1:]} <= {"prefill", "decode"}


def test_termination_is_longer_than_what_it_waits_for(rendered: Rendered) -> None:
    for owner, template in rendered.pod_templates().items():
        component = template["metadata"]["labels"]["app.kubernetes.io/component"]
        grace = template["spec"].get("terminationGracePeriodSeconds", 30)
        assert grace >= {"gateway": 20, "scheduler": 300, "trainer": 95, "sampler": 15, "redis": 30}.get(
            component, 0
        ), owner


def test_secrets_are_only_in_secrets(rendered: Rendered) -> None:
    pepper = "p" * 40
    text = render(
        merged(BASE, {"auth": {"pepper": pepper}, "redis": {"externalUrl": "redis://:hunter2@r:6379/0"}})
    ).text
    assert pepper not in text and "hunter2" not in text  # base64 in Secrets alone
    for item in rendered.of_kind("ConfigMap"):
        assert not {"pepper", "keys.json", "url"} & item["data"].keys()


def test_without_pools_the_control_plane_stands_alone() -> None:
    rendered = render({})
    assert {
        o["metadata"]["labels"]["app.kubernetes.io/component"] for o in rendered.of_kind("Deployment", "StatefulSet")
    } == {
        "gateway",
        "scheduler",
        "redis",
    }


def test_several_nodes_are_started_by_torchrun() -> None:
    spec = render(merged(BASE, NODES)).get("StatefulSet/trainer-p")["spec"]  # type: ignore[index]
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert command[:2] == ["sh", "-c"]
    assert '--node-rank="${HOSTNAME##*-}"' in command[2]
    assert {"--nnodes=2", "--nproc-per-node=1"} <= set(command)
    assert "--master-addr=t-tinkermesh-trainer-p-0.t-tinkermesh-trainer-p.mesh.svc" in command
    assert spec["podManagementPolicy"] == "Parallel"
    service = render(merged(BASE, NODES)).get("Service/trainer-p")
    assert service and service["spec"]["publishNotReadyAddresses"] is True


def test_a_leader_worker_set_starts_and_restarts_as_a_group() -> None:
    values = merged(BASE, NODES, at("pools.p.trainer.launcher", "leaderworkerset"))
    template = render(values).get("LeaderWorkerSet/trainer-p")["spec"]["leaderWorkerTemplate"]  # type: ignore[index]
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    leader, worker = (template[part]["spec"]["containers"][0] for part in ("leaderTemplate", "workerTemplate"))
    assert "readinessProbe" in leader and "readinessProbe" not in worker
    assert '--node-rank="$LWS_WORKER_INDEX"' in worker["command"][2]
    assert "--master-addr=$(LWS_LEADER_ADDRESS)" in worker["command"]


MANY = at("pools.p.trainer.replicas", 3)


def cell_said_by(command: list[str], **variables: str) -> str:
    """The cell that the container's command would start with, its program replaced."""
    program = next(number for number, part in enumerate(command) if part in ("python", "torchrun"))
    shell = command[2].replace("exec torchrun", 'exec "$@"; exec torchrun')
    shown = [*command[:2], shell, "sh", "sh", "-c", "echo $TINKERMESH_TRAINER_CELL"]
    assert program > 2
    return subprocess.run(shown, env=variables, capture_output=True, text=True, check=True).stdout.strip()


def test_each_of_several_trainers_is_a_cell_with_an_address_of_its_own_GAP_17() -> None:
    rendered = render(merged(BASE, MANY))
    spec = rendered.get("StatefulSet/trainer-p")["spec"]  # type: ignore[index]
    command = spec["template"]["spec"]["containers"][0]["command"]
    assert command[-3:] == ["python", "-m", "services.trainer"]
    assert [cell_said_by(command, HOSTNAME=f"t-tinkermesh-trainer-p-{n}") for n in (0, 2)] == ["0", "2"]
    variables = rendered.environment("StatefulSet/trainer-p")
    assert variables["TINKERMESH_TRAINER_ADVERTISE"] == "$(POD_NAME).t-tinkermesh-trainer-p.mesh.svc:7002"
    assert "TINKERMESH_TRAINER_TRAINER_ID" not in variables
    names = [entry["name"] for entry in spec["template"]["spec"]["containers"][0]["env"]]
    assert names.index("POD_NAME") < names.index("TINKERMESH_TRAINER_ADVERTISE")


def test_each_group_of_a_leader_worker_set_is_a_cell_GAP_17() -> None:
    values = merged(BASE, NODES, MANY, at("pools.p.trainer.launcher", "leaderworkerset"))
    spec = render(values).get("LeaderWorkerSet/trainer-p")["spec"]  # type: ignore[index]
    assert spec["replicas"] == 3
    for part in ("leaderTemplate", "workerTemplate"):
        command = spec["leaderWorkerTemplate"][part]["spec"]["containers"][0]["command"]
        leader = "t-tinkermesh-trainer-p-2.t-tinkermesh-trainer-p.mesh"
        assert cell_said_by(command, LWS_LEADER_ADDRESS=leader) == "2"


@pytest.mark.parametrize("helm", ["helm3", "helm4"])
def test_old_servers_get_what_they_know(helm: str) -> None:
    """Kubernetes 1.20 has no gRPC probes; version-dependent APIs are asked of the server."""
    binary(helm)
    old = render(BASE, "--kube-version", "1.20.2", helm=helm).get("Deployment/scheduler")
    new = render(BASE, "--kube-version", "1.33.0", helm=helm).get("Deployment/scheduler")
    probes = [o["spec"]["template"]["spec"]["containers"][0]["readinessProbe"] for o in (old, new) if o]
    assert probes[0]["exec"]["command"] == ["python", "-m", "services.common.probe", "127.0.0.1:7001"]
    assert probes[1]["grpc"] == {"port": 7001}


def test_a_server_older_than_the_chart_knows_is_refused() -> None:
    done = run(
        "helm4" if (CHART and binary("helm4")) else "helm3", "template", "t", str(CHART), "--kube-version", "1.19.0"
    )
    assert done.returncode != 0 and "1.19" in done.stderr


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_both_helms_render_the_same(path: Any) -> None:
    three, four = (render(example(path), helm=helm) for helm in ("helm3", "helm4"))
    assert without_chance(three) == without_chance(four)


def without_chance(rendered: Rendered) -> dict[str, Any]:
    """The pepper is drawn anew by each rendering without a cluster."""
    return {
        key: (item if key != f"Secret/{FULLNAME}-auth" else item["metadata"]) for key, item in rendered.by_key.items()
    }


@pytest.mark.parametrize("helm", ["helm3", "helm4"])
@pytest.mark.parametrize("path", [None, *EXAMPLES], ids=lambda path: path.stem if path else "defaults")
def test_lint_finds_nothing(path: Any, helm: str) -> None:
    values = ["-f", str(path)] if path else []
    done = run(helm, "lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout


def test_the_chart_can_be_packed(tmp_path: Any) -> None:
    done = run("helm4" if binary("helm4") else "helm3", "package", str(CHART), "-d", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("tinkermesh-*.tgz"))


def test_a_release_name_too_long_for_its_pods_is_refused() -> None:
    assert "fullnameOverride" in refusal(
        merged(BASE, at("fullnameOverride", "a" * 40), at("pools.a-long-name-of-a-pool.model.path", "/m"))
    )
