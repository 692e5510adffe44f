"""The console in a real Chromium, over real training through the SDK. Screenshots go to out/console."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinkermesh.v1 import types_pb2 as types

from services.scheduler.store.catalog import CatalogStore
from services.scheduler.store.catalog_entries import RunFacts
from services.scheduler.store.connection import connect
from services.scheduler.store.functions import Functions
from tests.contract.scheduler.requests import new_session
from tests.doubles import chromium
from tests.doubles.chromium import Browser, browser
from tests.doubles.devtools import Page
from tests.doubles.fake_trainer import BASE_MODEL
from tests.doubles.mesh import MeshProcesses
from tests.doubles.sdk_datums import supervised
from tests.mesh.console_history import OTHER_KEY, OTHER_NAME, SCRIPT, SECONDS, History, made
from tests.mesh.console_page import FAINT, OPTIONS, ConsolePage

PICTURES = Path(__file__).resolve().parents[2] / "out" / "console"
SIZES = [(1280, 800), (390, 844)]
RUNS, OTHER_RUNS = 4, 2
DRAWN = "[...document.querySelectorAll('#chart [data-run]')].map((curve) => curve.dataset.run).join(' ')"

pytestmark = [
    pytest.mark.mesh,
    pytest.mark.timeout(300),
    pytest.mark.skipif(chromium.find() is None, reason=chromium.MISSING),
]


@pytest.fixture(scope="module")
def console_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeshProcesses]:
    with MeshProcesses(tmp_path_factory.mktemp("console"), trainer_options=["--slots", "8"]) as running:
        yield running


@pytest.fixture(scope="module")
def history(console_mesh: MeshProcesses) -> Iterator[History]:
    with made(console_mesh) as history:
        yield history


@pytest.fixture(scope="module")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(str(chromium.find()), tmp_path_factory.mktemp("chromium")) as running:
        yield running


@pytest.fixture
def page(chrome: Browser) -> Iterator[Page]:
    with chrome.page() as page:
        page.resize(*SIZES[0])
        yield page


@pytest.fixture
def console(page: Page, console_mesh: MeshProcesses, history: History) -> ConsolePage:
    """Signed in as the tenant whose history this is."""
    return ConsolePage(page, console_mesh.base_url).signed_in(console_mesh.api_key, RUNS)


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """The address of another origin, and what came in there."""
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", asked
    server.shutdown()
    server.server_close()


def test_curves_are_drawn_from_what_the_sdk_was_told(console: ConsolePage, history: History) -> None:
    ids = [history.runs["harbour-sft"], history.runs["harbour-sft, restarted"]]
    console.choose(ids[0])
    console.choose(ids[1], add=True)
    for measure in ("loss", "loss_sum", "grad_norm", "learning_rate"):
        console.measure(measure)
        for run_id in ids:
            drawn, told = console.points(run_id), history.curves[run_id]
            assert [point["step"] for point in drawn] == [one.step for one in told]
            np.testing.assert_allclose(
                [point["value"] for point in drawn], [getattr(one, measure) for one in told], rtol=1e-12
            )
    console.measure("loss")
    assert console.page.text("#legend").split("\n") == ["harbour-sft", "harbour-sft, restarted"]


def test_marks_lie_where_the_axes_say(console: ConsolePage, history: History) -> None:
    """Of one run the places are linear in step and value, and the ticks lie on the same lines."""
    run_id = history.runs["harbour-sft"]
    console.choose(run_id)
    points = console.points(run_id)
    ticks = console.page.value(
        "[...document.querySelectorAll('#chart .axes text[text-anchor=end]')]"
        ".map((tick) => [Number(tick.textContent), Number(tick.getAttribute('y')) - 4])"
    )
    slope, start = np.polyfit([value for value, _ in ticks], [place for _, place in ticks], 1)
    places = [slope * point["value"] + start for point in points]
    np.testing.assert_allclose([point["y"] for point in points], places, atol=0.02)
    assert slope < 0 and len(ticks) >= 4
    across = np.polyfit([point["step"] for point in points], [point["x"] for point in points], 1)
    np.testing.assert_allclose(np.polyval(across, [p["step"] for p in points]), [p["x"] for p in points], atol=0.02)


def test_a_logarithmic_axis_is_linear_in_powers_of_ten(console: ConsolePage, history: History) -> None:
    run_id = history.runs["harbour-sft"]
    console.choose(run_id)
    console.page.value("document.getElementById('logarithmic').click()")
    points = console.points(run_id)
    assert len(points) == len(history.curves[run_id])
    powers = np.log10([point["value"] for point in points])
    slope, start = np.polyfit(powers, [point["y"] for point in points], 1)
    assert slope < 0
    np.testing.assert_allclose([point["y"] for point in points], slope * powers + start, atol=0.02)
    ticks = console.page.value(
        "[...document.querySelectorAll('#chart .axes text[text-anchor=end]')].map((tick) => Number(tick.textContent))"
    )
    assert ticks == [0.1, 1, 10]


def test_a_chart_can_be_read_without_seeing_it(console: ConsolePage, history: History) -> None:
    run_id = history.runs["harbour-sft"]
    console.choose(run_id)
    page, told = console.page, history.curves[run_id]
    assert page.value("document.querySelector('#chart svg').getAttribute('role')") == "img"
    assert page.value("document.querySelector('#chart svg title').textContent") == "Loss per position over steps"
    described = str(page.value("document.querySelector('#chart svg desc').textContent"))
    assert described.startswith("harbour-sft: from ") and described.endswith(f"at step {len(told)}.")
    page.value("document.querySelector('#table-box summary').click()")
    rows = page.value(
        "[...document.querySelectorAll('#chart-table tbody tr')].map((row) => [...row.cells].slice(0, 2)"
        ".map((cell) => Number(cell.textContent)))"
    )
    assert [row[0] for row in rows] == [one.step for one in told]
    np.testing.assert_allclose([row[1] for row in rows], [one.loss for one in told], rtol=1e-4)


def test_what_failed_is_told_as_its_client_read_it(console: ConsolePage, history: History) -> None:
    console.view("failures")
    cells = console.page.value("[...document.querySelectorAll('#failures tbody td')].map((cell) => cell.innerText)")
    assert len(cells) == 6
    assert "missing: logprobs, advantages" in cells[2] and cells[2].split("\n")[0] in history.cause
    assert (cells[1], cells[3], cells[4]) == ("forward_backward", "the request", "broken")
    console.page.value("document.querySelector('#failures a').click()")
    console.page.until(f"document.getElementById('facts').innerText.includes('{history.failed_run}')")


def test_the_mesh_is_shown_in_numbers(console: ConsolePage) -> None:
    console.view("mesh")
    told = console.page.text("#pools")
    for text in ("4 yours", "2 other tenants'", "2 free", "1 alive", "0 yours, 0 of all tenants"):
        assert text in told
    assert console.page.value("document.querySelectorAll('.slots .slot').length") == 8
    assert console.page.text("#queues") == "Nothing of yours waits."


def test_what_waits_is_shown_while_it_waits(
    console: ConsolePage, console_mesh: MeshProcesses, history: History
) -> None:
    page = console.page
    console.view("mesh")
    console_mesh.inject("trainer", [{"kind": "pass", "action": "hold_before", "times": 0}])
    sent = [history.broken.forward_backward([supervised([1, 2, token])], "cross_entropy") for token in (3, 4, 5)]
    page.until("document.getElementById('queues').innerText.includes('its turn')")
    page.until("document.querySelector('#queues td:nth-child(2)').innerText === '3'")
    page.until("document.getElementById('pools').innerText.includes('3 yours, 3 of all tenants')")
    assert page.text("#queues td") == "broken"
    page.screenshot(PICTURES / "mesh-busy-1280x800-light.png")
    console_mesh.inject("trainer", [])
    for future in sent:
        future.result(SECONDS)
    page.until("document.getElementById('queues').innerText === 'Nothing of yours waits.'")


def test_a_wrong_key_is_told_and_not_kept_SEC_02(page: Page, console_mesh: MeshProcesses, history: History) -> None:
    console = ConsolePage(page, console_mesh.base_url).open()
    console.sign_in("tml-not-a-key-of-this-mesh")
    told = page.until("document.getElementById('sign-in-error').textContent")
    assert "refused" in told and "not known to this mesh" in told
    assert page.value("sessionStorage.length + localStorage.length") == 0
    assert page.value("document.getElementById('key').value") == "" and console.focused() == "key"
    assert page.value("document.getElementById('views').hidden")
    console.sign_in(console_mesh.api_key)  # and then the right one
    page.until(f"{OPTIONS} === {RUNS}")


def test_a_key_is_in_no_address_and_gone_after_signing_out_SEC_02(
    console: ConsolePage, console_mesh: MeshProcesses, history: History
) -> None:
    """And so is what it had shown."""
    page, key = console.page, console_mesh.api_key
    console.choose(history.runs["harbour-sft"])
    page.until("document.getElementById('details-title').textContent === 'harbour-sft'")
    assert page.value("document.cookie") == "" and page.value("localStorage.length") == 0
    page.value("document.getElementById('sign-out').click()")
    assert page.value("sessionStorage.length") == 0
    assert page.value("document.querySelectorAll('#runs li, #facts *, #failures *, #pools *').length") == 0
    assert page.value("document.getElementById('failure-count').hidden")
    left = page.value("document.documentElement.outerHTML") + page.value("location.href")
    assert [word for word in (key, "harbour-sft", f"{RUNS} runs") if word in left] == []
    assert [address for address in page.requests if key in address] == []


# A search is asked for a little after the last key: signing out must come in between.
SEARCH_AND_LEAVE = """(async () => {
  document.getElementById('search').dispatchEvent(new Event('input'));
  document.getElementById('sign-out').click();
  const ask = window.fetch;
  let asked = 0;
  window.fetch = (...rest) => { asked += 1; return ask(...rest); };
  await new Promise((done) => setTimeout(done, 600));
  return asked;
})()"""


def test_nothing_is_asked_after_signing_out(console: ConsolePage) -> None:
    assert console.page.value(SEARCH_AND_LEAVE) == 0
    assert console.page.text("#sign-in-error") == ""


def test_no_request_leaves_the_origin_SEC_07(console: ConsolePage, elsewhere: tuple[str, list[str]]) -> None:
    """And what somebody might get into the page is not sent either: the policy stops it."""
    page = console.page
    for name in ("mesh", "failures", "runs"):
        console.view(name)
    origin = console.address.removesuffix("/console")
    assert page.requests and [address for address in page.requests if not address.startswith(f"{origin}/console")] == []
    assert page.complaints == [] and page.blocked == {}
    address, asked = elsewhere
    page.value(
        "new Promise((done) => { const image = new Image(); image.onerror = image.onload = done;"
        f" image.src = '{address}/stolen.png'; document.body.append(image); }})"
    )
    page.value(f"fetch('{address}/stolen').catch(() => null)")
    page.value("document.body.insertAdjacentHTML('beforeend', '<b id=trap onclick=\"window.planted = 1\">x</b>')")
    page.value(
        "(() => { const code = document.createElement('script'); code.textContent = 'window.planted = 2';"
        " document.body.append(code); document.getElementById('trap').click(); })()"
    )
    assert page.value("window.planted") is None
    assert asked == []
    assert any("Content Security Policy" in text for text in page.complaints)


def test_a_foreign_request_would_have_been_seen(page: Page, elsewhere: tuple[str, list[str]]) -> None:
    """Negative control: a page without the policy."""
    address, asked = elsewhere
    page.value(
        "new Promise((done) => { const image = new Image(); image.onerror = image.onload = done;"
        f" image.src = '{address}/seen.png'; }})"
    )
    assert f"{address}/seen.png" in page.requests and asked == ["/seen.png"]


def test_nothing_of_another_tenant_is_ever_shown_SEC_05(
    page: Page, console_mesh: MeshProcesses, history: History, console: ConsolePage
) -> None:
    foreign = [*history.other_runs, *(run.split(":")[0] for run in history.other_runs), OTHER_NAME]
    for name in ("runs", "mesh", "failures"):
        console.view(name)
        whole = str(page.value("document.documentElement.outerHTML"))
        assert [word for word in foreign if word in whole] == []
    page.value(f"location.hash = '#runs/{history.other_runs[0]}'")  # a link from somebody
    page.until("document.getElementById('facts').innerText.includes('belongs to')")
    page.value("document.getElementById('sign-out').click()")
    console.sign_in(OTHER_KEY)
    page.until(f"{OPTIONS} === {OTHER_RUNS}")
    page.until(f"{DRAWN} === '{history.other_runs[-1]}'")  # as if nobody had been here before
    for name in ("runs", "mesh", "failures"):
        console.view(name)
        whole = str(page.value("document.documentElement.outerHTML"))
        assert [run for run in (*history.runs.values(), "harbour-sft") if run in whole] == []


def test_a_link_that_was_cut_off_is_told_and_the_page_goes_on(
    page: Page, console_mesh: MeshProcesses, history: History
) -> None:
    page.open(f"{console_mesh.base_url}/console#runs/{history.runs['harbour-sft'].replace(':', '%3A')[:-4]}%")
    page.until("!document.getElementById('sign-in').hidden")
    ConsolePage(page, console_mesh.base_url).sign_in(console_mesh.api_key)
    page.until(f"{OPTIONS} === {RUNS}")
    assert "is not one of this mesh" in page.text("#facts")


async def entered(mesh: MeshProcesses, tenant: str, count: int) -> None:
    """Runs of an earlier day, as the catalog remembers them."""
    server = connect(f"redis://{mesh.mesh.addresses.redis}")
    store, session = CatalogStore(server, Functions(server)), new_session()
    for number in range(count):
        facts = RunFacts(BASE_MODEL, types.AdapterLayout(rank=4), f'{{"name": "job-{number}-"}}', "double")
        await store.add_run(tenant, f"{session}:train:{number}", 1_000_000 + number, facts)
    await server.aclose()


def test_thousands_of_runs_are_paged_and_searched(page: Page, console_mesh: MeshProcesses) -> None:
    key, count = "tml-a-tenant-of-many-runs", 2_000
    asyncio.run(entered(console_mesh, console_mesh.add_key(key), count))
    ConsolePage(page, console_mesh.base_url).signed_in(key, 25)
    assert page.text("#page-place") == "1–25 of 2,000" and page.text("#runs-summary") == "2,000 runs"
    assert page.value("document.getElementById('page-newer').disabled")
    page.value("document.getElementById('page-older').click()")
    page.until("document.getElementById('page-place').textContent === '26–50 of 2,000'")
    assert page.text("#runs [role=option] .name") == f"job-{count - 26}-"
    page.value("document.getElementById('search').focus()")
    page.type("job-1999-")
    page.until(f"{OPTIONS} === 1")
    assert page.text("#runs-summary") == "1 match, among the newest 1,000 of 2,000"
    page.value("document.getElementById('search').select()")
    page.type("job-17-")  # too old to be searched
    page.until("document.getElementById('runs').textContent.includes('No run matches')")
    assert page.text("#page-place") == ""


def test_a_run_named_as_a_script_is_a_run_with_that_name_SEC_07(console: ConsolePage, history: History) -> None:
    page = console.page
    console.choose(history.runs[SCRIPT])
    page.until("document.getElementById('details-title').textContent.includes('window.broken')")
    assert page.text("#legend") == SCRIPT
    assert SCRIPT in page.text("#runs")
    assert page.value("window.broken") is None
    assert page.value("document.querySelectorAll('main script, main img').length") == 0


WALK = ["skip", "runs", "mesh", "failures", "sign-out", "search", "runs", "measure", "logarithmic", "chart"]


def test_everything_can_be_done_with_the_keyboard(page: Page, console_mesh: MeshProcesses, history: History) -> None:
    console = ConsolePage(page, console_mesh.base_url).open()
    assert console.focused() == "key" and console.focus_is_visible()
    console.sign_in(console_mesh.api_key)
    page.until(f"{OPTIONS} === {RUNS} && document.activeElement.id === 'main'")
    page.value("document.body.focus(), document.activeElement.blur()")
    page.value("document.querySelector('.skip').focus()")
    walked = ["skip"]
    for _ in WALK[1:]:
        page.press("Tab")
        walked.append(console.focused())
        assert console.focus_is_visible(), walked
    assert walked == WALK
    page.until(f"{DRAWN} !== ''")
    page.press("ArrowRight")
    page.until("document.getElementById('readout').textContent.startsWith('Step ')")
    for _ in range(3):
        page.press("Tab", shift=True)  # back to the list
    assert console.focused() == "runs"
    page.press("Home")
    for _ in range(RUNS):
        page.press("ArrowDown")
    page.press("Enter")
    oldest = history.runs["harbour-sft"]
    page.until(f"{DRAWN} === '{oldest}'")
    page.press("ArrowUp")
    page.press("Space")
    page.until(f"{DRAWN} === '{oldest} {history.runs['harbour-sft, restarted']}'")
    page.press("Space")
    page.until(f"{DRAWN} === '{oldest}'")
    for _ in range(3):
        page.press("Tab")
    page.press("End")
    assert page.text("#readout").startswith(f"Step {len(history.curves[oldest])}: ")
    page.press("ArrowLeft")
    assert page.text("#readout").startswith(f"Step {len(history.curves[oldest]) - 1}: ")


def test_the_skip_link_leads_to_the_content_and_keeps_the_view(console: ConsolePage) -> None:
    console.view("mesh")
    console.page.value("document.querySelector('.skip').focus()")
    console.page.press("Enter")
    assert console.focused() == "main"
    assert console.page.value("location.hash") == "#mesh"


def test_a_value_is_shown_under_the_pointer(console: ConsolePage, history: History) -> None:
    run_id = history.runs["harbour-sft"]
    console.choose(run_id)
    place = console.page.value(
        "(() => { const at = document.querySelectorAll('#chart circle')[9].getBoundingClientRect();"
        " return [at.x + at.width / 2, at.y]; })()"
    )
    console.page.hover(place[0], place[1] + 20)
    shown = console.page.text("#readout")
    assert shown.startswith("Step 10: ")
    np.testing.assert_allclose(float(shown.split(": ")[1]), history.curves[run_id][9].loss, rtol=1e-4)


def test_it_says_when_it_is_not_up_to_date_and_recovers(console: ConsolePage) -> None:
    page = console.page
    offline = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    page.call("Network.emulateNetworkConditions", offline=True, **offline)
    page.until("!document.getElementById('trouble').hidden")
    told = page.text("#trouble")
    assert "Not up to date: the gateway cannot be reached." in told and "What is shown is of 2" in told
    assert page.value(OPTIONS) == RUNS  # what it had is still there
    page.call("Network.emulateNetworkConditions", offline=False, **offline)
    page.until("document.getElementById('trouble').hidden")


HIDE = "Object.defineProperty(document, 'hidden', {{value: {}, configurable: true}}),"
HIDE += " document.dispatchEvent(new Event('visibilitychange'))"
# Long waits do not end by themselves: the test ends them.
HELD_TIMERS = """(() => {
  const begin = window.setTimeout, end = window.clearTimeout;
  window.held = new Map();
  let number = -1;
  window.setTimeout = (work, wait, ...rest) => {
    if (!(wait >= 1000)) return begin(work, wait, ...rest);
    window.held.set(number, work);
    return number--;
  };
  window.clearTimeout = (id) => { window.held.delete(id); end(id); };
  window.endWaits = () => {
    const all = [...window.held.values()];
    window.held.clear();
    all.forEach((work) => work());
  };
})()"""


def test_a_hidden_page_asks_nothing(page: Page, console_mesh: MeshProcesses, history: History) -> None:
    page.call("Page.addScriptToEvaluateOnNewDocument", source=HELD_TIMERS)
    console = ConsolePage(page, console_mesh.base_url).signed_in(console_mesh.api_key, RUNS)
    page.until("held.size === 1")  # all answers are here, the next turn is some seconds away
    before = len(console.api_calls())
    page.value("endWaits()")
    page.until("held.size === 1")
    assert len(console.api_calls()) >= before + 3  # the state, the list, a run
    page.value(HIDE.format("true"))
    before = len(console.api_calls())
    assert page.value("held.size") == 0  # no turn will come
    page.value("endWaits()")
    assert len(console.api_calls()) == before
    page.value(HIDE.format("false"))
    page.until("held.size === 1")
    assert len(console.api_calls()) > before


@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_legible_at_every_size(
    console: ConsolePage, history: History, width: int, height: int, scheme: str
) -> None:
    """Nothing sticks out, contrasts are AA; the pictures are kept."""
    page = console.page
    console.choose(history.runs["harbour-sft, restarted"])
    console.choose(history.runs["harbour-sft"], add=True)
    page.resize(width, height, scheme=scheme)
    page.until(f"document.querySelector('#chart svg').clientWidth <= {width}")
    for name in ("runs", "mesh", "failures"):
        console.view(name)
        page.value("scrollTo(0, 0)")
        page.screenshot(PICTURES / f"{name}-{width}x{height}-{scheme}.png", whole=width < 600)
        assert page.value("document.scrollingElement.scrollWidth") <= width, name
        contrast = page.value(FAINT)
        assert contrast["seen"] > 10 and contrast["faint"] == [], name


def test_the_page_to_sign_in_is_legible(page: Page, console_mesh: MeshProcesses) -> None:
    for width, height in SIZES:
        page.resize(width, height)
        ConsolePage(page, console_mesh.base_url).open()
        page.screenshot(PICTURES / f"sign-in-{width}x{height}-light.png")
        assert page.value(FAINT)["faint"] == []


def test_a_faint_text_would_be_found(console: ConsolePage) -> None:
    """Negative control of the contrasts."""
    console.page.value("document.getElementById('runs-title').style.color = '#bbbbbb'")
    assert [text.split(":")[0] for text in console.page.value(FAINT)["faint"]] == ["Runs"]
