"""Exports, and the signed links under which a checkpoint's files are fetched without a key."""

from __future__ import annotations

import asyncio
from urllib.parse import urlsplit

import msgspec
import pytest
from tinkermesh.v1 import catalog_pb2

from services.gateway.settings import Settings
from tests.contract.gateway.conftest import KEY, OTHER_KEY, Client, Tenants, running
from tests.contract.gateway.fake_catalog import FILE, VERSION
from tests.contract.gateway.fake_scheduler import FakeScheduler
from tests.contract.gateway.test_catalog_routes import send
from tests.doubles.eventually import eventually


async def test_an_export_is_an_ordered_command_and_a_bad_one_fails_in_its_turn_VAL_01(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    body = {"model_id": model, "seq_id": 1, "path": "export", "ttl_seconds": 60, "type": "save_weights_external"}
    await client.post("save_weights_external", body)
    save = scheduler.last.command.save_external
    assert (save.name, save.ttl_seconds) == ("export", 60)
    for seq, change in enumerate(
        ({"age_encryption_recipients": ["age1x"]}, {"path": "../x"}, {"path": None}, {"ttl_seconds": 0}), start=2
    ):
        failure = await client.failure(await client.post("save_weights_external", body | {"seq_id": seq} | change))
        assert next(iter(change)) in failure


async def links(client: Client, model: str) -> dict[str, str]:
    answer = await send(client, "GET", f"training_runs/{model}/checkpoints/sampler_weights/sw/external_weights_urls")
    return {name: url.removeprefix("http://gateway") for name, url in answer.json()["urls"].items()}


async def test_a_link_needs_no_key_and_streams_the_file(client: Client, scheduler: FakeScheduler, model: str) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    answer = await client.http.get(url)
    assert (answer.status_code, answer.content) == (200, FILE)
    assert answer.headers["content-length"] == str(len(FILE))
    asked = scheduler.catalog.last
    assert (asked.path, asked.version) == (f"tinker://{model}/sampler_weights/sw", VERSION)


@pytest.mark.parametrize(
    ("span", "first", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=5-", 5, None),
        ("bytes=1000-2000000", 1000, 2_000_001),
        ("bytes=9-99999999", 9, None),
    ],
)
async def test_a_range_is_answered_in_part(client: Client, model: str, span: str, first: int, end: int | None) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    answer = await client.http.get(url, headers={"range": span})
    assert (answer.status_code, answer.content) == (206, FILE[first:end])
    assert answer.headers["content-range"] == f"bytes {first}-{(end or len(FILE)) - 1}/{len(FILE)}"


async def test_a_head_tells_the_size_without_the_file(client: Client, model: str) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    answer = await client.http.head(url)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(FILE))


@pytest.mark.parametrize(
    ("version", "shown"), [("0.26.2", "sampler"), ("0.30.4", "external"), ("0.38.0", "external"), ("", "external")]
)
async def test_an_old_sdk_is_told_no_type_it_would_refuse(
    client: Client, scheduler: FakeScheduler, model: str, version: str, shown: str
) -> None:
    scheduler.catalog.kind = "external_weights"
    answer = await send(client, "GET", "checkpoints?limit=1", **{"x-stainless-package-version": version})
    assert answer.json()["checkpoints"][0]["checkpoint_type"] == shown


@pytest.mark.parametrize("span", ["bytes=7-3", "bytes=-5", "lines=1-2", "bytes=a-b", "bytes=1-2,4-5"])
async def test_a_range_that_is_none_is_answered_whole(client: Client, model: str, span: str) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    answer = await client.http.get(url, headers={"range": span})
    assert (answer.status_code, answer.content) == (200, FILE)


@pytest.mark.parametrize("beyond", [0, 1, 1000])
async def test_a_range_behind_the_end_is_416(client: Client, model: str, beyond: int) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    answer = await client.http.get(url, headers={"range": f"bytes={len(FILE) + beyond}-"})
    assert (answer.status_code, answer.json()["category"]) == (416, "user")


async def test_a_changed_link_is_403_and_reaches_nobody_SEC_06(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    where = urlsplit(url).path
    asked = len(scheduler.catalog.asked)
    for bent in (
        where,
        f"{where}?expires=99999999999&signature=",
        url.replace("expires=", "expires=1"),
        url.replace("adapter_model.safetensors", "meta.json"),
        url.replace("/sampler_weights/", "/weights/"),
        url.replace(VERSION, VERSION.replace("0", "1")),
        url.replace("/files/adapter_model.safetensors", "/archive"),
        url + "0",
        url.replace("signature=", "signature=é"),
    ):
        answer = await client.http.get(bent)
        assert answer.status_code == 403, (bent, answer.status_code)
    assert (await client.http.get(url.replace("adapter_model", "..%2Fadapter_model"))).status_code == 404
    assert len(scheduler.catalog.asked) == asked


async def test_an_archive_link_streams_a_tar(client: Client, model: str) -> None:
    answer = (await send(client, "GET", f"training_runs/{model}/checkpoints/sampler_weights/sw/archive")).json()
    fetched = await client.http.get(answer["url"])
    assert (fetched.content, fetched.headers["content-type"]) == (b"tar!", "application/x-tar")


async def test_a_damaged_checkpoint_is_not_a_range_that_cannot_be_had(
    client: Client, scheduler: FakeScheduler, model: str
) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    scheduler.catalog.damaged = True
    assert (await client.http.get(url)).status_code == 400


async def test_downloads_at_once_are_bounded_per_tenant_and_in_all_SEC_10(
    settings: Settings, scheduler: FakeScheduler, tenants: Tenants, session: str, model: str
) -> None:
    theirs = scheduler.add_model(tenants.second, scheduler.add_session(tenants.second))
    third = msgspec.structs.replace(settings, max_downloads_per_tenant=2, max_downloads=3)
    scheduler.catalog.hold = asyncio.Event()
    async with running(third) as (http, gateway):
        client, other = Client(http, gateway, KEY), Client(http, gateway, OTHER_KEY)
        mine = (await links(client, model))["adapter_model.safetensors"]
        foreign = (await links(other, theirs))["adapter_model.safetensors"]
        opened = [asyncio.create_task(http.get(url)) for url in (mine, mine, foreign)]
        await eventually(lambda: sum(isinstance(r, catalog_pb2.ReadFileRequest) for r in scheduler.catalog.asked) == 3)
        refused = await http.get(mine)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "2 downloads are open already" in refused.json()["detail"]
        assert "3 downloads of all accounts" in (await http.get(foreign)).json()["detail"]
        assert (await http.head(foreign)).status_code == 429
        opened[2].cancel()  # a client that leaves
        scheduler.catalog.hold.set()
        assert [(await one).content for one in opened[:2]] == [FILE, FILE]
        for url in (mine, foreign, mine, foreign):
            assert (await http.get(url)).content == FILE


async def test_a_link_whose_account_was_changed_does_not_hold(client: Client, model: str) -> None:
    url = (await links(client, model))["adapter_model.safetensors"]
    assert "&for=" in url
    changed = url.replace("&for=", "&for=0")
    assert (await client.http.get(changed)).status_code == 403
