"""The console's routes: who may ask, what is asked of the scheduler, what is answered, and how the page goes out."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from services.gateway.console_files import DIRECTORY, POLICY
from services.gateway.settings import Settings
from tests.contract.gateway.conftest import KEY, Client, Tenants, running
from tests.contract.gateway.fake_console import NOW_MS
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.submitted import BASE_MODEL

API = ["/console/api/runs", "/console/api/runs/x", "/console/api/state"]
FILES = sorted(file.name for file in DIRECTORY.iterdir() if file.suffix in (".js", ".css", ".svg"))


async def get(client: Client, path: str, **headers: str) -> httpx.Response:
    return await client.http.get(path, headers={**client.headers, **headers})


@pytest.mark.parametrize("path", API)
@pytest.mark.parametrize("key", ["", "tml-of-nobody-SECRET", "no key at all"])
async def test_nothing_is_told_without_a_key_SEC_01_SEC_02(client: Client, path: str, key: str) -> None:
    answer = await client.http.get(path, headers={"x-api-key": key} if key else {})
    assert answer.status_code == 401
    assert "API key" in answer.json()["detail"] and (not key or key not in answer.text)


async def test_a_bearer_token_is_as_good_as_everywhere(client: Client, model: str) -> None:
    answer = await client.http.get("/console/api/runs", headers={"authorization": f"Bearer {KEY}"})
    assert [run["run_id"] for run in answer.json()["runs"]] == [model]


async def test_a_key_in_the_address_is_none(client: Client) -> None:
    assert (await client.http.get(f"/console/api/runs?key={KEY}&x-api-key={KEY}")).status_code == 401


async def test_runs_come_in_pages_of_the_callers_own(
    client: Client, other: Client, scheduler: FakeScheduler, tenants: Tenants, model: str
) -> None:
    answer = await get(client, "/console/api/runs?limit=7&offset=2&text=some%20words")
    assert [run["run_id"] for run in answer.json()["runs"]] == [model]
    assert answer.headers["cache-control"] == "no-store"
    asked = scheduler.console.last
    assert (asked.tenant_id, asked.limit, asked.offset, asked.text) == (tenants.first, 7, 2, "some words")
    assert (await get(other, "/console/api/runs")).json() == {"runs": [], "total": 0, "searched": None, "known": 0}
    assert (scheduler.console.last.tenant_id, scheduler.console.last.limit) == (tenants.second, 50)


async def test_a_run_is_rendered_with_its_curve(client: Client, model: str) -> None:
    answer = (await get(client, f"/console/api/runs/{model}")).json()
    assert answer["points"] == [
        {
            "step": 1,
            "time": NOW_MS,
            "loss": 1.5,
            "loss_sum": 6.0,
            "positions": 4,
            "learning_rate": 0.5,
            "grad_norm": None,
        },
        {
            "step": 2,
            "time": NOW_MS,
            "loss": None,
            "loss_sum": None,
            "positions": 0,
            "learning_rate": None,
            "grad_norm": 0.25,
        },
    ]
    run = answer["run"]
    assert (run["run_id"], run["state"], run["queued"], run["last"]["loss"]) == (model, "ready", 3, 1.5)
    assert (answer["stride"], answer["user_metadata"]) == (1, '{"a":1}')


async def test_a_loss_that_is_no_number_is_null(client: Client, scheduler: FakeScheduler, model: str) -> None:
    scheduler.console.loss_sum = float("inf")
    assert (await get(client, f"/console/api/runs/{model}")).json()["points"][0]["loss"] is None


async def test_a_foreign_or_unknown_run_is_refused_SEC_05(client: Client, other: Client, model: str) -> None:
    assert (await get(other, f"/console/api/runs/{model}")).status_code == 403
    assert (await get(client, "/console/api/runs/none")).status_code == 400


async def test_the_state_names_what_is_the_callers_own(client: Client, other: Client, model: str) -> None:
    answer = (await get(client, "/console/api/state")).json()
    assert answer["now"] == NOW_MS
    (pool,) = answer["pools"]
    assert pool["base_model"] == BASE_MODEL
    assert pool["slots"] == {"free": 0, "yours": 1, "others": 2, "unusable": 0}
    assert pool["samplers"] == [{"role": "both", "count": 2, "in_flight": 3}]
    assert answer["queues"] == [{"run_id": model, "depth": 3, "oldest_ms": 1500, "waits_for_seq": None}]
    (failure,) = answer["failures"]
    assert (failure["parent"], failure["cause"], failure["category"], failure["times"]) == (model, "why", "server", 2)
    theirs = await get(other, "/console/api/state")
    assert theirs.json()["queues"] == theirs.json()["failures"] == [] and model not in theirs.text


BAD = {
    "limit=0": "limit",
    "limit=101": "within 1 and 100",
    "limit=x": "limit",
    "offset=-1": "offset",
    f"text={'x' * 201}": "text",
}


@pytest.mark.parametrize("query", BAD)
async def test_bad_input_names_its_parameter(client: Client, query: str) -> None:
    answer = await get(client, f"/console/api/runs?{query}")
    assert answer.status_code == 400 and BAD[query] in answer.json()["detail"]


@pytest.mark.parametrize("path", [*API, "/console", "/console/static/app.js"])
async def test_it_only_reads(client: Client, path: str) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = await client.http.request(method, path, headers=client.headers)
        assert answer.status_code == 404 and "not supported" in answer.json()["detail"]


async def test_the_page_goes_out_with_a_policy_that_lets_nothing_else_in_SEC_07(client: Client) -> None:
    answer = await client.http.get("/console")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    assert answer.headers["content-security-policy"] == POLICY
    assert POLICY == (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    for name, value in (("x-content-type-options", "nosniff"), ("referrer-policy", "no-referrer")):
        assert answer.headers[name] == value


@pytest.mark.parametrize("name", FILES)
async def test_every_file_of_the_page_is_served_as_what_it_is(client: Client, name: str) -> None:
    answer = await client.http.get(f"/console/static/{name}")
    kinds = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
    assert answer.status_code == 200 and answer.headers["content-type"] == kinds[name.rsplit(".", 1)[1]]
    assert answer.content == (DIRECTORY / name).read_bytes()
    assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["none.js", "..%2Fsettings.py", "%2e%2e/settings.py", "index.py", "app.js%00"])
async def test_no_other_file_is_reached_SEC_07(client: Client, name: str) -> None:
    answer = await client.http.get(f"/console/static/{name}")
    assert answer.status_code == 404 and answer.json()["category"] == "user"


async def test_a_slash_behind_the_page_leads_to_it_below_any_prefix(client: Client) -> None:
    answer = await client.http.get("/console/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../console")


def test_the_page_asks_nobody_else_and_has_no_script_or_style_in_it() -> None:
    """What the policy would block must not be there in the first place."""
    page = (DIRECTORY / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert not re.search(r"<script(?![^>]*src=\"console/static/)", page)
    for file in DIRECTORY.iterdir():
        if file.suffix in (".js", ".css", ".html", ".svg"):
            addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", file.read_text()))
            assert addresses <= {"http://www.w3.org/2000/svg"}, file
    code = "".join(file.read_text() for file in DIRECTORY.glob("*.js"))
    assert not re.search(r"outerHTML|insertAdjacentHTML|document\.write|innerHTML\s*=[^=]|eval\(|localStorage", code)


async def test_it_can_be_switched_off(settings: Settings, model: str) -> None:
    async with running(msgspec.structs.replace(settings, console=False)) as (http, gateway):
        off = Client(http, gateway, KEY)
        answers: list[Any] = [await get(off, path) for path in (*API, "/console", "/console/static/app.js")]
        assert [answer.status_code for answer in answers] == [404] * len(answers)
        assert "detail" in answers[0].json()
