"""What the chart renders is what the services read: every variable is a field, and the field takes the value."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from services.common.mtls import Settings as MtlsSettings
from services.common.redis_url import parse_redis_url
from services.common.settings import from_environment
from services.gateway.upstream.target import scheduler_target
from tests.chart.helm import EXAMPLES, Rendered, at, example, merged, refusal, render
from tests.chart.leaves import SCHEMA
from tests.chart.switches import BASE, NODES, TLS
from tools import chart_schema
from tools.chart_schema import SERVICES, camel, values

WHERE = {
    "gateway": ("gateway.settings", "Deployment/gateway"),
    "scheduler": ("scheduler.settings", "Deployment/scheduler"),
    "trainer": ("pools.p.trainer.settings", "StatefulSet/trainer-p"),
    "sampler": ("pools.p.samplers.both.settings", "Deployment/sampler-p"),
}
POD_VALUES = {"$(POD_NAME)": "pod-0", "$(POD_IP)": "10.1.2.3"}


def settings_of(rendered: Rendered, service: str, key: str) -> Any:
    """As the service in that container would read them. Fails on a variable that is no field."""
    kind, _ = SERVICES[service]
    prefix = f"TINKERMESH_{service.upper()}_"
    fields = {f"{prefix}{field.name.upper()}" for field in msgspec.structs.fields(kind)}
    found = {name: value for name, value in rendered.environment(key).items() if name.startswith("TINKERMESH_")}
    found = {name: value for name, value in found.items() if not name.startswith("TINKERMESH_TLS_")}
    assert found.keys() <= fields
    for reference, value in POD_VALUES.items():
        found = {name: text.replace(reference, value) for name, text in found.items()}
    if service == "scheduler":
        found[f"{prefix}REDIS_URL"] = "redis://from-the-secret:6379/0"
    return from_environment(kind, service, found)


def other_than(kind: Any, default: Any) -> Any:
    """A value of the type that is not the default."""
    schema = chart_schema.of_type(kind)
    if "enum" in schema:
        return next(value for value in schema["enum"] if value != default)
    if schema == chart_schema.FLAG:
        return not default
    # Large on purpose: templates print whole numbers above a million as 1e+06 unless told otherwise.
    return {"integer": 123_456_789, "number": 2.5, "string": "ERROR"}[schema["type"]]


def chosen(service: str) -> dict[str, Any]:
    """Another value than the default for every field the chart lets users set."""
    kind, owned = SERVICES[service]
    fields = [field for field in msgspec.structs.fields(kind) if field.name not in owned]
    return {field.name: other_than(field.type, field.default) for field in fields}


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_every_setting_reaches_its_service(service: str) -> None:
    path, key = WHERE[service]
    wanted = chosen(service)
    if service == "trainer":
        wanted["drain_seconds"] = 62.5
    if service in ("gateway", "sampler"):
        wanted["drain_seconds"] = 12.5
    rendered = render(merged(BASE, at(path, {camel(name): value for name, value in wanted.items()})))
    read = settings_of(rendered, service, key)
    assert {name: getattr(read, name) for name in wanted} == wanted


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_without_values_the_service_keeps_its_own_defaults(service: str) -> None:
    _, owned = SERVICES[service]
    read = settings_of(render(BASE), service, WHERE[service][1])
    kind = SERVICES[service][0]
    for field in msgspec.structs.fields(kind):
        if field.name not in owned and field.default is not msgspec.NODEFAULT:
            assert getattr(read, field.name) == field.default, field.name


@pytest.mark.parametrize("service", sorted(SERVICES))
def test_a_setting_of_the_wrong_type_or_name_is_refused_with_its_path(service: str) -> None:
    path, _ = WHERE[service]
    name = camel(next(f.name for f in msgspec.structs.fields(SERVICES[service][0]) if f.name.endswith("_seconds")))
    said = refusal(merged(BASE, at(f"{path}.{name}", "soon")))
    assert re.search(rf"/?{path.replace('.', '[./]')}[./]{name}", said), said
    assert "noSuchSetting" in refusal(merged(BASE, at(f"{path}.noSuchSetting", 1)))


def test_the_schema_is_made_of_the_settings_there_are() -> None:
    """After a change of a Settings struct: python tools/chart_schema.py."""
    assert values() == SCHEMA


def test_what_trainer_and_sampler_must_agree_on_is_said_once() -> None:
    """Facts that differ would make the scheduler refuse one of them."""
    pool = {"baseModel": "a/b", "aliases": ["c"], "maxContext": 4096, "maxRank": 16, "model": {"path": "/models/x"}}
    rendered = render(merged(BASE, {"pools": {"p": pool}}))
    trainer = settings_of(rendered, "trainer", "StatefulSet/trainer-p")
    sampler = settings_of(rendered, "sampler", "Deployment/sampler-p")
    for field in ("model_path", "store_root", "pool", "base_model", "aliases", "max_context", "max_rank", "schedulers"):
        assert getattr(trainer, field) == getattr(sampler, field), field
    assert settings_of(rendered, "scheduler", "Deployment/scheduler").store_root == trainer.store_root


def test_services_find_each_other_by_names_the_chart_makes() -> None:
    rendered = render(BASE)
    target = settings_of(rendered, "gateway", "Deployment/gateway").scheduler
    assert target == "dns:///t-tinkermesh-scheduler.mesh.svc:7001"
    assert scheduler_target(target) == target
    service = rendered.get("Service/scheduler")
    assert service and service["spec"]["clusterIP"] == "None", "behind a virtual IP gRPC would see one address"
    trainer = settings_of(rendered, "trainer", "StatefulSet/trainer-p")
    assert trainer.schedulers == target
    assert trainer.advertised(7002) == "t-tinkermesh-trainer-p-0.t-tinkermesh-trainer-p.mesh.svc:7002"
    assert settings_of(rendered, "sampler", "Deployment/sampler-p").advertised(7003) == "10.1.2.3:7003"


def test_ports_are_the_ones_the_services_listen_on() -> None:
    rendered = render(BASE)
    for service, (_, key) in WHERE.items():
        read = settings_of(rendered, service, key)
        ports = [int(listen.rpartition(":")[2]) for listen in (read.listen, read.metrics_listen)]
        container = rendered.get(key)["spec"]["template"]["spec"]["containers"][0]  # type: ignore[index]
        assert [p["containerPort"] for p in container["ports"]] == ports


def test_engine_settings_pass_the_services_own_checks() -> None:
    for path in EXAMPLES:
        given = example(path)
        rendered = render(given)
        for pool in given["pools"]:
            if f"StatefulSet/t-tinkermesh-trainer-{pool}" in rendered.by_key:
                settings_of(rendered, "trainer", f"StatefulSet/trainer-{pool}").check()
            if f"Deployment/t-tinkermesh-sampler-{pool}" in rendered.by_key:
                settings_of(rendered, "sampler", f"Deployment/sampler-{pool}").check()


def test_a_mesh_without_samplers_says_so_to_the_scheduler() -> None:
    def samplers(*more: dict[str, Any]) -> bool:
        rendered = render(merged(BASE, *more))
        return bool(settings_of(rendered, "scheduler", "Deployment/scheduler").samplers)

    none = {"pools": {"p": {"samplers": {"both": {"replicas": 0}}}}}
    assert samplers()
    assert not samplers(none)
    assert samplers(none, {"pools": {"q": {"model": {"path": "/models/q"}}}})


def test_redis_is_what_the_scheduler_insists_on() -> None:
    """startup_checks.py refuses anything else."""
    container = render(BASE).get("StatefulSet/redis")["spec"]["template"]["spec"]["containers"][0]  # type: ignore[index]
    options = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--appendfsync"] == "always"
    assert options["--maxmemory-policy"] == "noeviction"


def test_every_pod_that_speaks_grpc_shows_the_certificate() -> None:
    """One without would be refused by all others."""
    rendered = render(merged(BASE, NODES, TLS))
    for owner in (
        "Deployment/gateway",
        "Deployment/scheduler",
        "StatefulSet/trainer-p",
        "Deployment/sampler-p",
        "Pod/test",
    ):
        spec = rendered.pod_templates()[f"{owner.split('/')[0]}/t-tinkermesh-{owner.split('/')[1]}"]["spec"]
        variables = {e["name"]: e["value"] for e in spec["containers"][0]["env"] if "value" in e}
        read = from_environment(MtlsSettings, "tls", variables)
        assert read.server_name == "tinkermesh", owner
        mounted = next(m["mountPath"] for m in spec["containers"][0]["volumeMounts"] if m["name"] == "tls")
        assert {Path(file).parent for file in (read.cert_file, read.key_file, read.ca_file)} == {Path(mounted)}
        secret = next(v["secret"]["secretName"] for v in spec["volumes"] if v["name"] == "tls")
        assert secret == rendered.get("Certificate/tls")["spec"]["secretName"]  # type: ignore[index]


REDIS_URLS = [
    "redis://:secret@r:6379/0",
    "rediss://r:6379/0?ssl_ca_certs=/etc/tinkermesh/redis/ca.crt",
    "redis+sentinel://s1:26379,s2:26379/0?master=mesh",
    "rediss+cluster://n1:6379,n2:6379?ssl_ca_certs=/etc/tinkermesh/redis/ca.crt",
]


@pytest.mark.parametrize("url", REDIS_URLS)
def test_every_kind_of_redis_the_scheduler_reaches_can_be_named(url: str) -> None:
    rendered = render(merged(BASE, at("redis.externalUrl", url)))
    secret = base64.b64decode(rendered.get("Secret/redis")["data"]["url"]).decode()  # type: ignore[index]
    assert secret == url
    assert parse_redis_url(secret).hosts
    assert rendered.get("StatefulSet/redis") is None
