"""Every public method of the newest SDK, found by introspection and called: it works, or is refused with a reason."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from tests.contract.sdk.surface import public_methods
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.mesh.sdk_calls import CLIENTS, REFUSED, Keywords, Tour
from tools.make_tiny_qwen3 import build

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(300)]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "api-coverage.md"
METHODS = sorted(name for name, _ in public_methods())
SECONDS = 60.0


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    """With tokens in place of keys, which `whoami` asks for."""
    variables, options = {"TINKERMESH_GATEWAY_JWT_AUTH": "true"}, ["--slots", "32"]
    directory = tmp_path_factory.mktemp("coverage")
    with MeshProcesses(directory, variables=variables, trainer_options=options) as running:
        yield running


@pytest.fixture(scope="module")
def tour(mesh: MeshProcesses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tour]:
    """In a directory that holds a tokenizer under the model's name, as a user's cache would."""
    directory = tmp_path_factory.mktemp("cwd")
    shutil.copytree(build(directory / "tiny"), directory / BASE_MODEL)
    before, patch = Path.cwd(), pytest.MonkeyPatch()
    for name, value in {**mesh.environment, "HF_HUB_OFFLINE": "1"}.items():
        patch.setenv(name, value)
    os.chdir(directory)
    try:
        yield Tour(BASE_MODEL)
    finally:
        os.chdir(before)
        patch.undo()


def test_every_public_method_is_listed_and_nothing_else_API_01() -> None:
    listed = {f"{client}.{method}" for client, (_, methods) in CLIENTS.items() for method in methods}
    asynchronous = {f"{name}_async" for name in listed} & set(METHODS)
    assert listed | asynchronous == set(METHODS)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "ServiceClient.close"])
def test_method_works_or_is_refused_with_a_reason_API_01_API_11(tour: Tour, method: str) -> None:
    reason = REFUSED.get(method.removesuffix("_async"))
    if reason is None:
        call(tour, method)
        return
    with pytest.raises((tinker.TinkerError, RuntimeError, ValueError)) as refused:
        call(tour, method)
    assert reason in str(refused.value)
    assert not isinstance(refused.value, tinker.InternalServerError)


def test_close_works_last_API_01(tour: Tour) -> None:
    call(tour, "ServiceClient.close")


def test_the_page_lists_every_method_with_its_outcome_API_11() -> None:
    """TINKERMESH_TEST_WRITE_PAGES=1 writes the page anew."""
    if os.environ.get("TINKERMESH_TEST_WRITE_PAGES"):
        PAGE.write_text(page())
    assert PAGE.read_text() == page(), "docs/api-coverage.md is out of date: TINKERMESH_TEST_WRITE_PAGES=1 writes it"


def call(tour: Tour, method: str) -> Any:
    """Calls it with the table's arguments and waits for what it answers."""
    client, _, name = method.partition(".")
    attribute, methods = CLIENTS[client]
    arguments = methods[name if name in methods else name.removesuffix("_async")](tour)
    target = getattr(getattr(tour, attribute), name)
    positional = [argument for argument in arguments if not isinstance(argument, Keywords)]
    named = {k: v for argument in arguments if isinstance(argument, Keywords) for k, v in argument.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return finished(target(*positional, **named) if callable(target) else target)


def finished(answer: Any) -> Any:
    """Waits for a coroutine, and for the future it may itself have answered."""
    if inspect.iscoroutine(answer):
        answer = asyncio.run(asyncio.wait_for(answer, SECONDS))
    return answer.result(timeout=SECONDS) if hasattr(answer, "result") else answer


def page() -> str:
    rows = "".join(f"| `{name}` | {outcome(name)} |\n" for name in METHODS)
    return f"""# What of the SDK works

Every public method of `tinker` {tinker.__version__}, found by introspection. `tests/mesh/test_api_coverage.py` calls
each one against a mesh and fails when a method is missing here, works although it is said to be refused, or fails in
another way. Older releases: [sdk-matrix.md](sdk-matrix.md).

| method | outcome |
| --- | --- |
{rows}"""


def outcome(method: str) -> str:
    reason = REFUSED.get(method.removesuffix("_async"))
    return "works" if reason is None else f"refused: {reason}"
