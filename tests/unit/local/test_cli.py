"""The `tinkermesh` command: keys, refusals, exit codes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.main import get_command
from typer.testing import CliRunner

from services.common.errors import InvalidInput
from services.common.keyring import Keyring, load_pepper
from services.local import cli, demo
from services.local.display import client_lines, mesh_table
from services.local.supervisor import Supervisor
from tests.doubles.known_keys import tenant_of
from tests.unit.local.test_supervisor import spec

runner = CliRunner()


def ring(directory: Path) -> Keyring:
    return Keyring(directory / "keys.json", load_pepper(directory / "pepper"))


def test_added_key_is_shown_once_and_kept_as_a_digest_SEC_02(tmp_path: Path) -> None:
    added = runner.invoke(cli.app, ["keys", "add", "--label", "ci", "--state-dir", str(tmp_path)])
    assert added.exit_code == 0
    found = re.search(r"key +(tml-\S+)\s+tenant +(\S+)", added.output)
    assert found is not None
    key, tenant = found.groups()
    assert tenant_of(ring(tmp_path), key) == tenant
    listed = runner.invoke(cli.app, ["keys", "list", "--state-dir", str(tmp_path)])
    assert tenant in listed.output and "ci" in listed.output
    assert key not in listed.output + (tmp_path / "keys.json").read_text()


def add_key(directory: Path, key: str, *options: str) -> Result:
    command = ["keys", "add", "--key", "-", *options, "--state-dir", str(directory)]
    return runner.invoke(cli.app, command, input=f"{key}\n")


def test_second_key_of_a_tenant_keeps_its_id(tmp_path: Path) -> None:
    assert add_key(tmp_path, "tml-one").exit_code == 0
    tenant = tenant_of(ring(tmp_path), "tml-one")
    assert add_key(tmp_path, "tml-two", "--tenant", tenant).exit_code == 0
    assert tenant_of(ring(tmp_path), "tml-two") == tenant


def test_a_mistyped_tenant_is_refused_and_makes_no_key(tmp_path: Path) -> None:
    refused = add_key(tmp_path, "tml-one", "--tenant", "nobody")
    assert refused.exit_code == 1
    assert ring(tmp_path).tenants() == set()


def test_key_without_the_prefix_is_refused(tmp_path: Path) -> None:
    assert add_key(tmp_path, "sk-1").exit_code == 1


def test_a_key_on_the_command_line_is_refused_SEC_02(tmp_path: Path) -> None:
    """Whoever lists the machine's processes would see it."""
    refused = runner.invoke(cli.app, ["keys", "add", "--key", "tml-one", "--state-dir", str(tmp_path)])
    assert refused.exit_code == 1
    assert "use --key - and send it to stdin" in refused.output + refused.stderr
    assert not (tmp_path / "keys.json").exists() or ring(tmp_path).tenants() == set()


def test_listing_before_any_key_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = runner.invoke(cli.app, ["keys", "list", "--state-dir", str(tmp_path / "none")])
    assert listed.exit_code == 1
    assert "run tinkermesh up or keys create first" in listed.stderr


def test_unreadable_key_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text("{broken")
    listed = runner.invoke(cli.app, ["keys", "list", "--state-dir", str(tmp_path)])
    assert listed.exit_code == 1
    assert "keys.json cannot be read" in listed.stderr


def test_brackets_in_a_refusal_or_a_label_are_no_markup(tmp_path: Path) -> None:
    refused = add_key(tmp_path, "tml-one", "--tenant", "[/red] of [bold]")
    assert refused.exit_code == 1
    assert "'[/red] of [bold]' is not a tenant" in refused.stderr
    assert add_key(tmp_path, "tml-one", "--label", "[/ci]").exit_code == 0
    assert "[/ci]" in runner.invoke(cli.app, ["keys", "list", "--state-dir", str(tmp_path)]).output


def test_demo_outside_a_checkout_is_refused_before_any_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "DEMO_DIRECTORY", tmp_path)
    monkeypatch.setattr(cli.default_model, "ensure", lambda: pytest.fail("fetched a model"))
    refused = runner.invoke(cli.app, ["demo", "--state-dir", str(tmp_path)])
    assert refused.exit_code == 1
    assert "demo/train.py is not here" in refused.stderr


def test_up_refuses_a_directory_without_a_model(tmp_path: Path) -> None:
    refused = runner.invoke(cli.app, ["up", "--model", str(tmp_path), "--state-dir", str(tmp_path / "s")])
    assert refused.exit_code == 1
    assert "no config.json" in refused.stderr


def test_named_model_is_served_under_its_path_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    plain = cli.make_settings(model=str(tmp_path), model_name="", state_dir=tmp_path, threads=0)
    assert plain.model_name == str(tmp_path.resolve())
    assert plain.threads >= 1
    named = cli.make_settings(model=str(tmp_path), model_name="org/m", state_dir=tmp_path, threads=1)
    assert named.model_name == "org/m"


@pytest.mark.parametrize("alias", ["", "a,b", "org/m:8k"])
def test_alias_that_cannot_be_a_name_is_refused(tmp_path: Path, alias: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidInput, match="--alias"):
        cli.make_settings(model=str(tmp_path), model_name="", state_dir=tmp_path, threads=1, aliases=[alias])


def test_prefill_and_decode_without_samplers_is_refused_naming_the_options(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="--prefill-decode: there are no samplers with --no-sampler"):
        cli.make_settings(
            model=str(tmp_path), model_name="", state_dir=tmp_path, threads=1, prefill_decode=True, sampler=False
        )


def options(*path: str) -> list[Any]:
    command: Any = get_command(cli.app)
    for name in path:
        command = command.commands[name]
    return [param for param in command.params if param.param_type_name == "option"]


@pytest.mark.parametrize("path", [("up",), ("demo",), ("keys", "add"), ("keys", "list")])
def test_every_option_explains_itself_and_no_two_alike(path: tuple[str, ...]) -> None:
    texts = [option.help or "" for option in options(*path)]
    assert all(len(text) > 10 for text in texts)
    assert len(set(texts)) == len(texts)


def test_every_option_of_up_is_in_the_manual() -> None:
    manual = (Path(__file__).resolve().parents[3] / "docs" / "local.md").read_text()
    named = {name for option in options("up") for name in (*option.opts, *option.secondary_opts)}
    assert not {name for name in named - {"--sampler"} if f"`{name}`" not in manual}


def test_client_lines_are_what_a_shell_evaluates() -> None:
    assert client_lines({"TINKER_API_KEY": "tml-local"}) == ["export TINKER_API_KEY=tml-local"]


def test_table_has_a_row_for_every_child(tmp_path: Path) -> None:
    supervisor = Supervisor([spec(tmp_path, "gateway-0"), spec(tmp_path, "trainer")])
    assert mesh_table(supervisor.children).row_count == 2
