"""A mesh that traces, audits, issues tokens and makes keys while it runs keeps no key and no token (SEC-02, SEC-04)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import pytest
import tinker
from typer.testing import CliRunner

from services.local import cli
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.otlp import Receiver
from tests.mesh.test_keys import created as made_by_cli
from tests.mesh.test_secrets import Session, files, redis_content

pytestmark = [pytest.mark.mesh, pytest.mark.timeout(180)]


@dataclass
class Told:
    """A mesh after its scenario; `secrets` by name, as any service saw them."""

    mesh: MeshProcesses
    receiver: Receiver
    secrets: dict[str, str]
    model: str


def by_command(mesh: MeshProcesses, *arguments: str) -> tuple[str, str, str]:
    return made_by_cli(CliRunner().invoke(cli.app, ["keys", *arguments, "--state-dir", str(mesh.settings.state_dir)]))


def token_of(mesh: MeshProcesses, key: str) -> str:
    with httpx.Client(base_url=mesh.base_url, trust_env=False) as client:
        answer = client.post("/api/v1/auth/token", json={}, headers={"x-api-key": key})
        assert answer.status_code == 200, answer.text
        token = str(answer.json()["jwt"])
        for credential in (token, token[:-8] + "AAAAAAAA"):
            client.get("/api/v1/auth/apikey/me", headers={"x-api-key": credential})
        return token


def sdk_work(mesh: MeshProcesses, key: str) -> str:
    """Through the unmodified SDK, which sends tokens: answers the tenant's URN."""
    service = tinker.ServiceClient(base_url=mesh.base_url, api_key=key)
    training = service.create_lora_training_client(base_model=BASE_MODEL, rank=8).result()
    training.save_state("with-a-token").result(60)
    return str(tinker.RestClient(base_url=mesh.base_url, api_key=key).whoami().result(30).org_urn)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    directory = tmp_path_factory.mktemp("told")
    with Receiver() as receiver:
        variables = {
            **receiver.environment,
            "TINKERMESH_GATEWAY_JWT_AUTH": "true",
            "TINKERMESH_GATEWAY_AUDIT_FILE": str(directory / "audit" / "lines"),
            "TINKERMESH_GATEWAY_LONG_POLL_SECONDS": "1",
        }
        with MeshProcesses(directory, variables=variables) as mesh:
            session = Session(mesh)
            asyncio.run(session.run())
            made, key_id, tenant = by_command(mesh, "create", "--label", "secret-test")
            rotated, _, _ = by_command(mesh, "rotate", key_id)
            token = token_of(mesh, made)
            assert tenant in sdk_work(mesh, rotated)
            payload, signature = token.split(".")[1:]
            secrets = {**session.keys, "made": made, "rotated": rotated, "payload": payload, "signature": signature}
            receiver.wait(lambda spans: any("save" in span.name for span in spans))
            yield Told(mesh, receiver, secrets, session.model)


def holders(content: dict[str, bytes], secrets: dict[str, str]) -> list[str]:
    wanted = {name: secret.removeprefix("tml-").encode() for name, secret in secrets.items()}
    return [f"{place}: {name}" for place, data in content.items() for name, secret in wanted.items() if secret in data]


def test_no_secret_in_redis_SEC_02(told: Told) -> None:
    content = redis_content(told.mesh.mesh.addresses.redis)
    assert "tm:{dir}:keys" in content and any(told.model.encode() in value for value in content.values())
    assert holders(content, told.secrets) == []


def test_no_secret_in_any_file_SEC_02_SEC_04(told: Told) -> None:
    """The append-only file, the store, all logs and the audit file: everything under the state directory."""
    content = dict(files(told.mesh.settings.state_dir))
    for place in ("audit/lines", "logs/gateway-0.log", "logs/scheduler-0.log", "logs/trainer.log", "keys.json"):
        assert place in content, sorted(content)
    assert any(name.startswith("redis/") and told.model.encode() in data for name, data in content.items())
    assert holders(content, told.secrets) == []


def test_no_secret_in_any_trace_SEC_02(told: Told) -> None:
    content = {f"export {number}": data for number, data in enumerate(told.receiver.raw)}
    assert any(told.model.encode() in data for data in content.values()), "spans name the model"
    assert holders(content, told.secrets) == []


def test_the_audit_file_tells_who_did_what(told: Told) -> None:
    lines = [json.loads(line) for line in (told.mesh.settings.state_dir / "audit" / "lines").read_text().splitlines()]
    decisions = {(line["decision"], line["route"]) for line in lines}
    assert ("admitted", "POST /api/v1/create_model") in decisions
    assert ("refused", "POST /api/v1/create_session") in decisions, "an unknown key"
    assert ("admitted", "POST /api/v1/auth/token") in decisions
    admitted = [line for line in lines if line.get("op") == "optim_step" and line["decision"] == "admitted"]
    assert admitted and all(line["request_id"] and line["key"].startswith("key-") for line in admitted)
    assert max(len(json.dumps(line)) for line in lines) < 1500


def test_keys_made_by_command_leave_an_audit_line_at_the_scheduler(told: Told) -> None:
    lines = [json.loads(line) for line in told.mesh.logs("scheduler-0").splitlines() if "tinkermesh.audit" in line]
    assert [line["decision"] for line in lines if line.get("label") == "secret-test"][:1] == ["created"]


def test_a_secret_in_a_span_would_be_found(told: Told) -> None:
    """Negative control of the search."""
    data = told.receiver.raw[0] + told.secrets["made"].encode()
    assert holders({"x": data}, told.secrets) == ["x: made"]
