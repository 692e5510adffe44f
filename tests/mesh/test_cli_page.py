"""Every command of docs/cli.md by the real tinkermesh, its output compared with the page, on a mesh with work in it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from services.local import cli
from tests.doubles import model_dir
from tests.doubles.grpcurl import Documented, documented, run
from tests.doubles.mesh import MeshProcesses
from tests.mesh.cli_page import Shown, shape, shown
from tests.mesh.doctor import clean
from tests.mesh.test_grpcurl import absent

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
BLOCKS = list(documented(PAGE))
ELSEWHERE = {"up", "demo", "keys", "tenants"}
"""Commands that docs/local.md and docs/tenants.md describe, with tests of their own."""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with pytest.MonkeyPatch.context() as patch:
        clean(patch)
        directory = tmp_path_factory.mktemp("mesh")
        patch.setenv("TINKERMESH_STATE", str(directory))
        model = model_dir.build(tmp_path_factory.mktemp("models") / "zeros")
        with MeshProcesses(directory, model=model) as mesh, shown(mesh) as made:
            yield made


@pytest.fixture
def idle(plain_mesh: MeshProcesses) -> Path:
    """The state directory of a mesh with nothing to do."""
    return plain_mesh.settings.state_dir


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_documented_command_prints_what_the_page_shows(block: Documented, page: Shown, idle: Path) -> None:
    (command,) = block.commands
    assert "tinkermesh " in command
    if command.startswith("tinkermesh bench"):  # the page's own mesh holds its passes
        command += f" --state-dir {idle}"
    done = run(command, page.replacements)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    if block.kind == "json":
        assert list(absent(json.loads(block.output), json.loads(done.stdout))) == [], done.stdout
    elif block.kind == "text":
        assert shape(done.stdout) == shape(block.output), done.stdout


def test_shapes_of_other_texts_differ() -> None:
    """Negative control of the comparison."""
    said = "double  3 of 32  0.7 s  12 B   /tmp/x/a"
    assert shape(said) == shape("double   1 of 8   9 min  1.2 MiB /var/b")
    assert shape(said) != shape("double  3 of 32  0.7 s  12 B") and shape("held 3") != shape("free 3")


def test_the_page_documents_every_command_and_option() -> None:
    for name, command in get_command(cli.app).commands.items():  # type: ignore[attr-defined]
        if name in ELSEWHERE:
            continue
        for words, one in [(f"{name} {sub}", found) for sub, found in getattr(command, "commands", {}).items()] or [
            (name, command)
        ]:
            assert any(f"tinkermesh {words}" in block.commands[0] for block in BLOCKS), words
            for option in (one.opts + one.secondary_opts for one in one.params if one.param_type_name == "option"):
                assert any(re.search(rf"{name}\b", PAGE) for name in option), f"{words}: {option}"
