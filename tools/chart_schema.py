"""Write charts/tinkermesh/values.schema.json: the chart's own values, and every field the services' settings have.

Usage: python tools/chart_schema.py [--check]
"""

from __future__ import annotations

import argparse
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from services.gateway.settings import Settings as GatewaySettings
from services.sampler.legs import ROLES
from services.sampler.settings import Settings as SamplerSettings
from services.scheduler.settings import Settings as SchedulerSettings
from services.trainer.settings import Settings as TrainerSettings

TARGET = Path(__file__).resolve().parent.parent / "charts" / "tinkermesh" / "values.schema.json"

# Set by the chart itself, or of no use in a container.
OWNED = {"listen", "port_file", "metrics_listen", "metrics_port_file", "key_file", "pepper_file", "store_root"}
ENGINE = {"model_path", "advertise", "schedulers", "pool", "base_model", "aliases", "max_context", "max_rank"}
SERVICES: dict[str, tuple[type[msgspec.Struct], set[str]]] = {
    "gateway": (GatewaySettings, OWNED | {"listen_fd", "scheduler", "public_url", "audit_file", "audit_file_bytes"}),
    "scheduler": (SchedulerSettings, OWNED | {"redis_url", "redis_password_file", "replica", "samplers"}),
    "trainer": (
        TrainerSettings,
        OWNED | ENGINE | {"trainer_id", "cell", "tp", "dp", "pp", "ep", "cp", "rendezvous", "rank", "engine"},
    ),
    "sampler": (
        SamplerSettings,
        OWNED | ENGINE | {"sampler_id", "role", "kv_directory", "kv_hash_seed", "redis_url", "redis_password_file"},
    ),
}

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
MAP: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
FREE: Schema = {"type": "object"}
LIST: Schema = {"type": "array", "items": {"type": "object"}}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?$"}
NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([a-z0-9-]*[a-z0-9])?)?$", "maxLength": 40}
OBJECT_NAME: Schema = {"type": "string", "pattern": "^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$", "maxLength": 253}
DIGEST: Schema = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
DIRECTORY: Schema = {"type": "string", "pattern": "^/[^:]*$"}
POOL_NAME = "^[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?$"


def integer(least: int = 0, most: int | None = None) -> Schema:
    return {"type": "integer", "minimum": least, **({} if most is None else {"maximum": most})}


def one_of(*values: Any) -> Schema:
    return {"enum": list(values)}


def closed(properties: dict[str, Schema], description: str = "") -> Schema:
    """An object with these properties and no others."""
    text = {"description": description} if description else {}
    return {"type": "object", "additionalProperties": False, "properties": properties, **text}


def camel(field: str) -> str:
    first, *rest = field.split("_")
    return first + "".join(part.capitalize() for part in rest)


def of_type(kind: Any) -> Schema:
    """The schema of a settings field. Raises TypeError for a type no setting has had yet."""
    if get_origin(kind) is Literal:
        return one_of(*get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return of_type(next(a for a in get_args(kind) if a is not type(None)))
    known: dict[type, Schema] = {int: {"type": "integer"}, float: {"type": "number"}, bool: FLAG, str: TEXT}
    if kind not in known:
        raise TypeError(f"no schema for settings of type {kind}")
    return known[kind]


def settings(service: str) -> Schema:
    kind, owned = SERVICES[service]
    hints = typing.get_type_hints(kind)
    fields = [f.name for f in msgspec.structs.fields(kind) if f.name not in owned]
    return closed(
        {camel(name): of_type(hints[name]) for name in sorted(fields)}, f"fields of TINKERMESH_{service.upper()}_*"
    )


def image(*, tagged: bool = False) -> Schema:
    path = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9._/:-]*[a-z0-9])?$"}
    return closed({"repository": path, "digest": DIGEST, **({"tag": {**TEXT, "minLength": 1}} if tagged else {})})


def pod(**more: Schema) -> dict[str, Schema]:
    return {
        "resources": closed({"requests": FREE, "limits": FREE}),
        "nodeSelector": MAP,
        "tolerations": LIST,
        "affinity": FREE,
        "priorityClassName": OBJECT_NAME,
        "podAnnotations": MAP,
        "podLabels": MAP,
        "terminationGracePeriodSeconds": integer(1),
        **more,
    }


AUTOSCALING: dict[str, Schema] = {
    "kind": one_of("none", "hpa", "keda"),
    "minReplicas": integer(1),
    "maxReplicas": integer(1),
    "targetCPUUtilizationPercentage": integer(1, 100),
    "metrics": LIST,
    "triggers": {"type": "array", "items": {"type": "object", "required": ["type"]}},
}
BY_QUEUE_AGE: dict[str, Schema] = {
    "queueAgeSeconds": integer(0, 3600),
    "prometheusUrl": {"type": "string", "pattern": "^(https?://.+)?$"},
}
BUDGET = closed({"enabled": FLAG, "maxUnavailable": integer(1)})
SPREAD = closed(
    {"topologyKey": TEXT, "maxSkew": integer(1), "whenUnsatisfiable": one_of("ScheduleAnyway", "DoNotSchedule")}
)
ENV = {"type": "array", "items": {"type": "object", "required": ["name"]}}


def gateway() -> Schema:
    return closed(
        pod(
            replicas=integer(1),
            image=image(),
            publicUrl={"type": "string", "pattern": "^(https?://.+[^/])?$"},
            settings=settings("gateway"),
            service=closed(
                {
                    "type": one_of("ClusterIP", "NodePort", "LoadBalancer"),
                    "port": integer(1, 65535),
                    "annotations": MAP,
                }
            ),
            ingress=closed(
                {
                    "enabled": FLAG,
                    "className": TEXT,
                    "annotations": MAP,
                    "hosts": {"type": "array", "items": {"type": "string", "minLength": 1}},
                    "tls": LIST,
                }
            ),
            httpRoute=closed(
                {
                    "enabled": FLAG,
                    "annotations": MAP,
                    "parentRefs": {"type": "array", "items": {"type": "object", "required": ["name"]}},
                    "hostnames": {"type": "array", "items": {"type": "string", "minLength": 1}},
                    "requestTimeout": {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){0,4}$"},
                }
            ),
            autoscaling=closed(AUTOSCALING),
            podDisruptionBudget=BUDGET,
            topologySpread=SPREAD,
            extraEnv=ENV,
            preStopSeconds=integer(1, 120),
        )
    )


def scheduler() -> Schema:
    return closed(
        pod(
            replicas=integer(1),
            image=image(),
            settings=settings("scheduler"),
            podDisruptionBudget=BUDGET,
            topologySpread=SPREAD,
            extraEnv=ENV,
        )
    )


def trainer() -> Schema:
    return closed(
        pod(
            image=image(),
            launcher=one_of("statefulset", "leaderworkerset"),
            replicas=integer(1, 64),
            nodes=integer(1),
            gpusPerNode=integer(0, 64),
            tensorParallel=integer(1),
            dataParallel=integer(1),
            settings=settings("trainer"),
            startupSeconds=integer(10),
            topologySpread=SPREAD,
            sharedMemory=QUANTITY,
            runtimeClassName=OBJECT_NAME,
            extraEnv=ENV,
        )
    )


def sampler() -> Schema:
    return closed(
        pod(
            image=image(),
            replicas=integer(0),
            gpus=integer(0, 1),
            settings=settings("sampler"),
            startupSeconds=integer(10),
            sharedMemory=QUANTITY,
            autoscaling=closed({**AUTOSCALING, **BY_QUEUE_AGE}),
            podDisruptionBudget=BUDGET,
            topologySpread=SPREAD,
            runtimeClassName=OBJECT_NAME,
            extraEnv=ENV,
        )
    )


def pool() -> Schema:
    no_comma = {"type": "string", "pattern": "^[^,:]*$"}
    return closed(
        {
            "baseModel": no_comma,
            "aliases": {"type": "array", "items": {**no_comma, "minLength": 1}},
            "maxContext": integer(0),
            "maxRank": integer(1, 512),
            "model": closed(
                {
                    "path": {"type": "string", "pattern": "^(/[^:]*)?$"},
                    "volume": {"type": "object", "maxProperties": 1},
                    "mountPath": DIRECTORY,
                    "subPath": TEXT,
                }
            ),
            "trainer": trainer(),
            "tier": closed({"volume": {"type": "object", "maxProperties": 1}, "hashSeed": integer(0, (1 << 32) - 1)}),
            "samplers": closed({role: {"$ref": "#/$defs/sampler"} for role in ROLES}, "one entry per role"),
        }
    )


def redis() -> Schema:
    return closed(
        pod(
            externalUrl={"type": "string", "pattern": r"^(rediss?(\+(sentinel|cluster))?://.+)?$"},
            tlsSecret=OBJECT_NAME,
            existingSecret=OBJECT_NAME,
            image=image(tagged=True),
            maxMemory={"type": "string", "pattern": "^[0-9]+(kb|mb|gb)?$"},
            persistence=closed({"storageClassName": TEXT, "size": QUANTITY}),
        )
    )


def metrics() -> Schema:
    made = {"create": one_of("auto", "always", "never"), "labels": MAP}
    interval = {"type": "string", "pattern": "^[0-9]+(ms|s|m)$"}
    return closed(
        {
            "enabled": FLAG,
            "port": integer(1024, 65535),
            "serviceMonitor": closed({**made, "interval": interval}),
            "prometheusRule": closed(made),
            "dashboard": closed({"enabled": FLAG, "labels": MAP, "annotations": MAP}),
        }
    )


def values() -> Schema:
    key = {**closed({"tenantId": {**TEXT, "minLength": 1}, "label": TEXT}), "required": ["tenantId"]}
    own = {
        "nameOverride": NAME,
        "fullnameOverride": NAME,
        "commonLabels": MAP,
        "image": closed(
            {
                "registry": {"type": "string", "pattern": "^([^/].*[^/])?$"},
                "tag": TEXT,
                "pullPolicy": one_of("Always", "IfNotPresent", "Never"),
                "pullSecrets": {"type": "array", "items": closed({"name": {**OBJECT_NAME, "minLength": 1}})},
            }
        ),
        "serviceAccount": closed({"create": FLAG, "name": OBJECT_NAME, "annotations": MAP}),
        "auth": closed(
            {
                "existingSecret": OBJECT_NAME,
                "pepper": {"type": "string", "pattern": r"^(\S{32,})?$"},
                "keys": {
                    "type": "object",
                    "additionalProperties": False,
                    "patternProperties": {"^[0-9a-f]{64}$": key},
                },
            }
        ),
        "store": closed(
            {
                "existingClaim": OBJECT_NAME,
                "storageClassName": TEXT,
                "accessMode": one_of("ReadWriteMany", "ReadWriteOnce"),
                "size": QUANTITY,
                "keep": FLAG,
            }
        ),
        "redis": redis(),
        "gateway": gateway(),
        "scheduler": scheduler(),
        "pools": {
            "type": "object",
            "additionalProperties": False,
            # null takes a pool away that a file below has set.
            "patternProperties": {
                POOL_NAME: {"type": ["object", "null"], "if": {"type": "object"}, "then": {"$ref": "#/$defs/pool"}},
            },
        },
        "poolDefaults": {"$ref": "#/$defs/pool"},
        "singleNode": closed({"gpus": integer(0), "hostname": TEXT}),
        "networkPolicy": closed({"enabled": FLAG, "gatewayFrom": LIST, "operatorsFrom": LIST, "metricsFrom": LIST}),
        "tls": closed(
            {
                "enabled": FLAG,
                "existingSecret": OBJECT_NAME,
                "serverName": {"type": "string", "pattern": r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"},
                "certManager": closed(
                    {
                        "issuer": OBJECT_NAME,
                        "kind": one_of("Issuer", "ClusterIssuer"),
                        "duration": {"type": "string", "pattern": "^[0-9]+h$"},
                        "renewBefore": {"type": "string", "pattern": "^[0-9]+h$"},
                    }
                ),
            }
        ),
        "metrics": metrics(),
        "tracing": closed({"endpoint": {"type": "string", "pattern": "^(https?://.+)?$"}}),
        "jaeger": closed({"enabled": FLAG, "image": image(tagged=True), "resources": pod()["resources"]}),
        "test": closed({"enabled": FLAG, "pool": TEXT, "timeoutSeconds": integer(10)}),
        # Helm's own, when this chart is a dependency of another.
        "global": FREE,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Values of the tinkermesh chart",
        **closed(own),
        "$defs": {"pool": pool(), "sampler": sampler()},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="say whether the file is up to date instead of writing it")
    text = json.dumps(values(), indent=1) + "\n"
    if parser.parse_args().check:
        return 0 if TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
