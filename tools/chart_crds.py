"""Write tests/chart/crds/*.json: the schemas of foreign kinds, as packages of their operators' releases carry them.

Needs pip and npm with their registries; nothing is installed into the project's own environment. LeaderWorkerSet is in
no package: tests/chart/crds/LeaderWorkerSet.json is written by hand.
Usage: python tools/chart_crds.py
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parent.parent / "tests" / "chart" / "crds"
# The last part of a version is the package's own, the rest the operator's.
MODELS = {
    "cloudcoil-models-cert-manager==1.17.1.0": ("cloudcoil.models.cert_manager.v1", ["Certificate"]),
    "cloudcoil-models-keda==2.16.1.0": ("cloudcoil.models.keda.v1alpha1", ["ScaledObject"]),
    "cloudcoil-models-prometheus-operator==0.80.1.0": (
        "cloudcoil.models.prometheus_operator.v1",
        ["ServiceMonitor", "PrometheusRule"],
    ),
}
GATEWAY = "@kubernetes-models/gateway-api@2.0.0"
GENERATOR = "ts-json-schema-generator@2.4.0"
DUMP = """
import importlib, json, sys
print(json.dumps(getattr(importlib.import_module(sys.argv[1]), sys.argv[2]).model_json_schema()))
"""
PROSE = ("description", "title", "default", "examples", "markdownDescription")

Schema = dict[str, Any]


def tidy(part: Any) -> Any:
    """Without prose, without null (which Kubernetes drops), and closed: an unknown field is refused."""
    if isinstance(part, list):
        return [tidy(item) for item in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key not in PROSE or isinstance(value, dict)}
    choices = [choice for choice in kept.pop("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        kept |= choices[0]
    elif choices:
        kept["anyOf"] = choices
    if isinstance(kept.get("type"), list):
        kept["type"] = [name for name in kept["type"] if name != "null"]
    if isinstance(kept.get("pattern"), str):  # Go takes flags anywhere, JSON Schema's readers at the start
        kept["pattern"] = kept["pattern"].replace("^(?i)", "(?i)^")
    names = kept.pop("properties", None)
    kept = {key: tidy(value) for key, value in kept.items()}
    if names:
        kept["properties"] = {name: tidy(value) for name, value in names.items()}
        kept.setdefault("additionalProperties", False)
    return kept


def of_models(place: Path) -> dict[str, Schema]:
    """Kind -> schema, of the Python packages."""
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *MODELS], check=True)
    found: dict[str, Schema] = {}
    for package, (module, kinds) in MODELS.items():
        for kind in kinds:
            dumped = subprocess.run([python, "-c", DUMP, module, kind], check=True, capture_output=True, text=True)
            required = {"required": ["apiVersion", "kind", "spec"]}
            found[kind] = {"$comment": package, **tidy(json.loads(dumped.stdout)), **required}
    return found


def of_gateway_api(place: Path) -> Schema:
    """HTTPRoute: the fields from the package's types, what texts and numbers may be from its validators."""
    place.mkdir()
    (place / "package.json").write_text("{}")
    subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", GATEWAY, GENERATOR], cwd=place, check=True)
    package = place / "node_modules" / "@kubernetes-models" / "gateway-api"
    options = {"module": "nodenext", "moduleResolution": "nodenext", "strict": True, "skipLibCheck": True}
    (place / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "include": [f"{package}/**/*.d.ts"]}))
    types = package / "gateway.networking.k8s.io" / "v1" / "HTTPRouteSpec.d.ts"
    command = ["npx", "ts-json-schema-generator", "-f", "tsconfig.json", "--path", str(types), "--no-type-check"]
    made = subprocess.run([*command, "--type", "IHTTPRouteSpec"], cwd=place, check=True, capture_output=True, text=True)
    definitions = json.loads(made.stdout)["definitions"]
    for name, schema in definitions.items():
        validator = package / "_schemas" / f"IoK8sSigsGatewayApiApisV1{name.removeprefix('I')}.js"
        if schema.get("type") in ("string", "number") and validator.is_file():
            schema |= limits(validator.read_text())
    names = {"apiVersion": {"const": "gateway.networking.k8s.io/v1"}, "kind": {"const": "HTTPRoute"}}
    fields = {**names, "metadata": {"type": "object"}, "spec": {"$ref": "#/definitions/IHTTPRouteSpec"}}
    top = tidy({"type": "object", "properties": fields})
    return {"$comment": GATEWAY, **top, "required": [*names, "spec"], "definitions": tidy(definitions)}


def limits(validator: str) -> Schema:
    """The one pattern and the limits a compiled validator of a text or a number holds."""
    found: Schema = {}
    if pattern := re.search(r'keyword:"pattern",params:\{pattern:("(?:[^"\\]|\\.)*")\}', validator):
        found["pattern"] = json.loads(pattern[1])
    for keyword, limit in re.findall(r'keyword:"(\w+)",params:\{(?:comparison:"[<>=]+",)?limit:(\d+)\}', validator):
        found[keyword] = int(limit)
    if 'params:{type:"integer"}' in validator:
        found["type"] = "integer"
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        schemas = of_models(Path(directory) / "python")
        schemas["HTTPRoute"] = of_gateway_api(Path(directory) / "node")
    for kind, schema in schemas.items():
        (TARGET / f"{kind}.json").write_text(json.dumps(schema, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
