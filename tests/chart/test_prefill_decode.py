"""PDR: prefill and decode samplers as the chart renders them: each has a tier, and they pair with one another."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from services.common.settings import from_environment
from services.sampler.settings import Settings
from tests.chart.helm import CHART, FULLNAME, ROOT, Rendered, at, example, merged, refusal, render
from tests.chart.switches import BASE, HOST_MEMORY, LEGS
from tests.chart.test_contract import chosen
from tools.chart_schema import camel

ROLES = ("prefill", "decode")
EXAMPLE = CHART / "examples" / "prefill-decode.yaml"
OWN = ("role", "kv_directory", "kv_hash_seed", "redis_url", "redis_password_file")
GIVEN = merged(BASE, LEGS)
S = "pools.p.samplers"
OUTSIDE = {"redis": {"existingSecret": "url", "tlsSecret": "authority"}}
RUNS = {"prefill": at(f"{S}.prefill.replicas", 1), "decode": at(f"{S}.decode.replicas", 1)}


def workload(role: str, pool: str = "p") -> str:
    return f"Deployment/sampler-{pool}" + ("" if role == "both" else f"-{role}")


def pod(rendered: Rendered, role: str) -> dict[str, Any]:
    return rendered.pod_templates()[f"Deployment/{FULLNAME}-{workload(role).split('/')[1]}"]["spec"]  # type: ignore[no-any-return]


def read(rendered: Rendered, role: str, pool: str = "p") -> Settings:
    """As the sampler in that pod reads them, its own checks passed; its Redis as the Secret may have it."""
    found = rendered.environment(workload(role, pool)) | {
        "TINKERMESH_SAMPLER_REDIS_URL": "redis://of-the-secret:6379/0"
    }
    return from_environment(Settings, "sampler", found).check()


def test_the_role_of_samplers_is_the_name_of_their_group() -> None:
    rendered = render(GIVEN)
    assert [read(rendered, role).role for role in ("both", *ROLES)] == ["both", *ROLES]


def test_samplers_of_both_roles_have_no_tier_and_no_redis() -> None:
    rendered = render(merged(GIVEN, OUTSIDE, at("pools.p.tier.volume", HOST_MEMORY)))
    spec = pod(rendered, "both")
    assert read(rendered, "both").kv_directory == "" and read(rendered, "both").kv_hash_seed == ""
    assert "REDIS" not in str(spec["containers"][0]["env"])
    assert {volume["name"] for volume in spec["volumes"]} == {"store", "tmp", "shm", "model"}


@pytest.mark.parametrize("values", [GIVEN, example(EXAMPLE)], ids=["base", EXAMPLE.stem])
def test_prefill_and_decode_agree_on_all_they_pair_by(values: dict[str, Any]) -> None:
    """kv_facts.py says what that is; the engine's version is the images' own."""
    rendered = render(values)
    for pool in values["pools"]:
        first, second = (read(rendered, role, pool) for role in ROLES)
        for field in ("model_path", "block_size", "kv_hash_seed", "dtype", "kv_directory", "pool"):
            assert getattr(first, field) == getattr(second, field) != "", field


@pytest.mark.parametrize(("tier", "directory"), [({}, "/store/kv/p"), ({"volume": HOST_MEMORY}, "/kv/p")])
def test_the_tier_lies_where_a_volume_is_mounted_that_can_be_written(tier: dict[str, Any], directory: str) -> None:
    rendered = render(merged(GIVEN, at("pools.p.tier", tier)))
    for role in ROLES:
        spec = pod(rendered, role)
        (mount,) = [m for m in spec["containers"][0]["volumeMounts"] if directory.startswith(f"{m['mountPath']}/")]
        assert read(rendered, role).kv_directory == directory and not mount.get("readOnly")
        assert mount["name"] in {volume["name"] for volume in spec["volumes"]}


def test_pools_that_share_a_volume_do_not_share_a_tier() -> None:
    other = {"pools": {"q": merged(LEGS["pools"]["p"], {"model": {"path": "/models/q"}})}}
    rendered = render(merged(GIVEN, other, at("poolDefaults.tier.volume", HOST_MEMORY)))
    assert [read(rendered, "prefill", pool).kv_directory for pool in ("p", "q")] == ["/kv/p", "/kv/q"]


def test_legs_ask_the_same_redis_as_the_scheduler_with_the_same_certificates() -> None:
    rendered = render(merged(GIVEN, OUTSIDE))
    scheduler = rendered.pod_templates()[f"Deployment/{FULLNAME}-scheduler"]["spec"]

    def redis_of(spec: dict[str, Any], service: str) -> Any:
        container = spec["containers"][0]
        name = f"TINKERMESH_{service}_REDIS_URL"
        (url,) = [entry["valueFrom"] for entry in container["env"] if entry["name"] == name]
        mounts = [mount for mount in container["volumeMounts"] if mount["name"] == "redis-tls"]
        return url, mounts, [volume for volume in spec["volumes"] if volume["name"] == "redis-tls"]

    wanted = redis_of(scheduler, "SCHEDULER")
    assert wanted[0]["secretKeyRef"] == {"name": "url", "key": "url"} and wanted[1] and wanted[2]
    assert [redis_of(pod(rendered, role), "SAMPLER") for role in ROLES] == [wanted, wanted]


def test_another_redis_or_tier_starts_the_legs_anew_and_no_other_sampler() -> None:
    """Variables of a running pod stay as they were."""

    def annotations(*more: dict[str, Any]) -> dict[str, Any]:
        rendered = render(merged(GIVEN, *more))
        names = [workload(role).split("/")[1] for role in ("both", *ROLES)]
        templates = rendered.pod_templates()
        return {name: templates[f"Deployment/{FULLNAME}-{name}"]["metadata"]["annotations"] for name in names}

    before = annotations()
    for change in (at("redis.externalUrl", "redis://elsewhere:6379/0"), at("pools.p.tier.hashSeed", 7)):
        after = annotations(change)
        assert {name for name in before if before[name] != after[name]} == {"sampler-p-prefill", "sampler-p-decode"}


def sources(values: dict[str, Any]) -> list[dict[str, str]]:
    policy = render(values).get("NetworkPolicy/redis")
    return [peer["podSelector"]["matchLabels"] for rule in policy["spec"]["ingress"] for peer in rule["from"]]  # type: ignore[index]


def test_of_all_pods_schedulers_and_legs_alone_reach_redis() -> None:
    """SEC: Redis asks for no key."""
    admitted = sources(GIVEN)
    reach = {
        owner
        for owner, template in render(GIVEN).pod_templates().items()
        if any(peer.items() <= template["metadata"]["labels"].items() for peer in admitted)
    }
    parts = ("scheduler", "sampler-p-prefill", "sampler-p-decode")
    assert reach == {f"Deployment/{FULLNAME}-{part}" for part in parts}


def test_without_legs_no_sampler_reaches_redis() -> None:
    assert [peer["app.kubernetes.io/component"] for peer in sources(BASE)] == ["scheduler"]


def test_a_pool_of_legs_alone_has_samplers() -> None:
    rendered = render(merged(GIVEN, at(f"{S}.both.replicas", 0)))
    assert rendered.environment("Deployment/scheduler")["TINKERMESH_SCHEDULER_SAMPLERS"] == "true"
    assert rendered.get("Deployment/sampler-p") is None


def test_a_pool_whose_name_is_too_long_for_legs_is_refused_only_with_them() -> None:
    """The longest name is that of a prefill sampler."""
    pool = {"one-pool-of-25-characters": {"model": {"path": "/models/m"}}}
    assert render({"pools": pool}).get("Deployment/sampler-one-pool-of-25-characters")
    legs = {"pools": {"one-pool-of-25-characters": LEGS["pools"]["p"]}}
    assert "has more than 52 characters" in refusal(merged({"pools": pool}, legs))


@pytest.mark.parametrize("role", ROLES)
def test_every_setting_reaches_its_leg(role: str) -> None:
    wanted = chosen("sampler") | {"drain_seconds": 12.5, "dtype": "bfloat16"}
    settings = {camel(name): value for name, value in wanted.items()}
    alike = {camel(name): wanted[name] for name in ("block_size", "dtype")}
    rendered = render(
        merged(GIVEN, *(at(f"{S}.{leg}.settings", alike) for leg in ROLES), at(f"{S}.{role}.settings", settings))
    )
    found = read(rendered, role)
    assert {name: getattr(found, name) for name in wanted} == wanted


@pytest.mark.parametrize("name", OWN)
def test_what_the_chart_sets_itself_cannot_be_set_beside_it(name: str) -> None:
    said = refusal(merged(GIVEN, at(f"{S}.prefill.settings", {camel(name): "x"})))
    assert camel(name) in said and "prefill" in said


UNFIT: list[tuple[str, list[dict[str, Any]]]] = [
    ("pools.p.samplers.decode.replicas: 0, but samplers.prefill runs", [BASE, RUNS["prefill"]]),
    ("pools.p.samplers.prefill.replicas: 0, but samplers.decode runs", [BASE, RUNS["decode"]]),
    (
        "pools.p.samplers.decode.replicas: 0",
        [BASE, at(f"{S}.prefill.autoscaling.kind", "hpa")],
    ),
    ("settings.blockSize: 64, but not set in samplers.prefill", [GIVEN, at(f"{S}.decode.settings.blockSize", 64)]),
    (
        "pools.p.samplers.decode.settings.dtype: float32, but bfloat16 in samplers.prefill",
        [GIVEN, at(f"{S}.prefill.settings.dtype", "bfloat16"), at(f"{S}.decode.settings.dtype", "float32")],
    ),
    ("pools.p.tier.volume.emptyDir: belongs to one pod", [GIVEN, at("pools.p.tier.volume", {"emptyDir": {}})]),
    ("hashSeed", [GIVEN, at("pools.p.tier.hashSeed", 1 << 32)]),
    ("hashSeed", [GIVEN, at("pools.p.tier.hashSeed", "random")]),
    ("volume", [GIVEN, at("pools.p.tier.volume", {"hostPath": {"path": "/a"}, "nfs": {}})]),
    ("prefil", [GIVEN, at(f"{S}.prefil.replicas", 1)]),
]


@pytest.mark.parametrize(("said", "values"), UNFIT, ids=lambda part: part[:60] if isinstance(part, str) else "")
def test_legs_that_would_never_pair_are_refused(said: str, values: list[dict[str, Any]]) -> None:
    assert said in refusal(merged(*values))


def test_legs_with_the_same_settings_are_taken() -> None:
    alike = {"blockSize": 64, "dtype": "bfloat16"}
    rendered = render(merged(GIVEN, *(at(f"{S}.{role}.settings", alike) for role in ROLES)))
    assert [(read(rendered, role).block_size, read(rendered, role).dtype) for role in ROLES] == [(64, "bfloat16")] * 2


def test_the_values_the_guide_shows_are_taken() -> None:
    """docs/install.md"""
    (shown,) = re.findall(r"```yaml\n(pools:\n.*?)```", (ROOT / "docs" / "install.md").read_text(), re.DOTALL)
    values = merged(yaml.safe_load(shown), at("pools.qwen3-8b.model.path", "/models/m"))
    rendered = render(values)
    assert [read(rendered, role, "qwen3-8b").role for role in ROLES] == list(ROLES)
    assert read(rendered, "prefill", "qwen3-8b").kv_limit_gib == 100
