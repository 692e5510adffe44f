"""Real helm binaries, and what a chart renders to."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.chart_tools import DIRECTORY

ROOT = Path(__file__).resolve().parent.parent.parent
CHART = ROOT / "charts" / "tinkermesh"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
REQUIRED = "TINKERMESH_TEST_CHART_TOOLS_REQUIRED"
FULLNAME = "t-tinkermesh"

Object = dict[str, Any]
Values = Mapping[str, Any]

try:
    from yaml import CSafeLoader as Loader
except ImportError:  # a PyYAML without libyaml
    from yaml import SafeLoader as Loader  # type: ignore[assignment]


def absent(what: str) -> None:
    """Skips, or fails where `make chart-test` promised that all tools are there."""
    reason = f"{what} is absent; `make chart-test` fetches it"
    if os.environ.get(REQUIRED):
        pytest.fail(reason)
    pytest.skip(reason)


def binary(name: str) -> str:
    """helm3 or helm4; skips without it."""
    found = DIRECTORY / "bin" / name
    if not found.is_file():
        absent(name)
    return str(found)


def any_helm() -> str:
    """The newest there is."""
    for name in ("helm4", "helm3"):
        if (DIRECTORY / "bin" / name).is_file():
            return name
    absent("helm")
    return ""


def validator(name: str) -> list[str]:
    """How to call kubernetes-validate or checkov; skips without it. By its Python: the environment may have moved."""
    place = DIRECTORY / name
    if not ((place / ".installed").is_file() and (place / "bin" / name).is_file()):
        absent(name)
    return [str(place / "bin" / "python"), str(place / "bin" / name)]


class Rendered:
    """The objects of one rendering, by kind and name."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.all: list[Object] = [d for d in yaml.load_all(text, Loader=Loader) if d]  # noqa: S506 - a safe loader
        self.by_key = {f"{o['kind']}/{o['metadata']['name']}": o for o in self.all}

    def get(self, key: str) -> Object | None:
        """`Deployment/gateway`: the release's; `Deployment/=name`: exactly this name."""
        kind, name = key.split("/", 1)
        full = name[1:] if name.startswith("=") else f"{FULLNAME}-{name}" if name else FULLNAME
        return self.by_key.get(f"{kind}/{full}")

    def of_kind(self, *kinds: str) -> list[Object]:
        return [o for o in self.all if o["kind"] in kinds]

    def pod_templates(self) -> dict[str, Object]:
        """Every pod the chart makes: owner -> template."""
        found: dict[str, Object] = {}
        for key, item in self.by_key.items():
            if item["kind"] == "Pod":
                found[key] = item
            elif item["kind"] in ("Deployment", "StatefulSet"):
                found[key] = item["spec"]["template"]
            elif item["kind"] == "LeaderWorkerSet":
                template = item["spec"]["leaderWorkerTemplate"]
                found[f"{key}/leader"] = template["leaderTemplate"]
                found[f"{key}/worker"] = template["workerTemplate"]
        return found

    def environment(self, key: str) -> dict[str, str]:
        """Variables of the first container of `key`, those of its ConfigMap too; references are left out."""
        container = self.pod_templates()[f"{key.split('/')[0]}/{FULLNAME}-{key.split('/')[1]}"]["spec"]["containers"][0]
        variables: dict[str, str] = {}
        for source in container.get("envFrom", []):
            variables |= self.by_key[f"ConfigMap/{source['configMapRef']['name']}"]["data"]
        return variables | {e["name"]: e["value"] for e in container["env"] if "value" in e}


def run(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": os.environ["PATH"]}
        return subprocess.run(
            [binary(helm), *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
        )


def template(helm: str, values: Values, *arguments: str) -> subprocess.CompletedProcess[str]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        return run(helm, "template", "t", str(CHART), "-n", "mesh", "-f", file.name, *arguments)


@functools.lru_cache(maxsize=256)
def _rendered(helm: str, values: str, arguments: tuple[str, ...]) -> Rendered:
    done = template(helm, json.loads(values), *arguments)
    if done.returncode:
        pytest.fail(f"helm template failed: {done.stderr}")
    return Rendered(done.stdout)


def render(values: Values, *arguments: str, helm: str = "") -> Rendered:
    return _rendered(helm or any_helm(), json.dumps(values, sort_keys=True), arguments)


def refusal(values: Values, helm: str = "") -> str:
    """What helm says when it refuses `values`; fails when it takes them."""
    done = template(helm or any_helm(), values)
    if done.returncode == 0:
        pytest.fail(f"{json.dumps(values)} was taken")
    return done.stderr


def example(path: Path) -> Values:
    loaded: Values = yaml.safe_load(path.read_text())
    return loaded


def merged(*layers: Values) -> dict[str, Any]:
    """Later ones win; maps are merged, everything else is replaced."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
            result[key] = merged(result[key], value) if both else value
    return result


def at(path: str | Sequence[str], value: Any) -> dict[str, Any]:
    """{"a": {"b": value}} for `a.b`."""
    keys = path.split(".") if isinstance(path, str) else list(path)
    for key in reversed(keys):
        value = {key: value}
    result: dict[str, Any] = value
    return result


def has(program: str) -> bool:
    return shutil.which(program) is not None
