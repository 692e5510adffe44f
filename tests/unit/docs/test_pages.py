"""The figures, settings and formulas' defaults that the users' pages name are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from services.gateway.connection import MAX_HEADER_BYTES
from services.gateway.links import LINK_SECONDS
from services.gateway.routes.checkpoints import CHECKPOINTS_PER_PAGE, RUNS_PER_PAGE
from services.gateway.routes.history import SESSIONS_PER_PAGE
from services.gateway.settings import Limits, Settings
from services.gateway.validation.losses import RULES
from services.gateway.wire.json_body import METADATA_BYTES
from services.gateway.wire.queries import LARGEST_PAGE
from services.scheduler.catalog.sessions import LOOKED_AT_MOST
from services.scheduler.sampling.limits import SamplingLimits
from services.scheduler.settings import Settings as SchedulerSettings
from services.trainer.losses import OBJECTIVES
from tests.doubles.sdk_matrix import NEWEST, OLDEST, VERSIONS

DOCS = Path(__file__).resolve().parents[3] / "docs"
ROOT = DOCS.parent
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
GATEWAY = Settings(key_file="", pepper_file="")
SCHEDULER = SchedulerSettings(store_root="", pepper_file="")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text()


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    table = text.split(heading, 1)[1].lstrip().split("\n\n|", 1)[-1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


OPERATE = [
    f"{MAX_HEADER_BYTES >> 10} KiB of request line and headers",
    f"{GATEWAY.header_timeout_seconds:.0f} s for a whole header",
    f"{GATEWAY.body_timeout_seconds:.0f} s for a whole body",
    f"{GATEWAY.max_body_bytes >> 20} MiB of body, decompressed; {GATEWAY.max_small_body_bytes >> 20} MiB on routes",
    f"zstd: {GATEWAY.zstd_free_bytes >> 20} MiB, or {GATEWAY.zstd_max_ratio} times",
    f"{Limits().max_parts:,} objects, lists and texts",
    f"{METADATA_BYTES >> 10} KiB of `user_metadata`",
    f"{GATEWAY.max_datums:,} datums and {GATEWAY.max_tokens_per_request:,} tokens a request",
    f"{GATEWAY.max_polls_per_tenant:,} open polls",
]
WAITS = SamplingLimits()
SAMPLING = [
    f"1 to {GATEWAY.max_samples} independent sequences",
    f"At most {Limits().max_stops} entries",
    f"k up to {GATEWAY.max_topk_logprobs} |",
    f"k up to {GATEWAY.max_prompt_draws}, (len(prompt) - 1) * k up to {GATEWAY.max_prompt_cells:,}",
    f"at most {GATEWAY.completions_per_answer} at a time",
    f"({GATEWAY.sample_dispatch_bytes >> 10} KiB at four bytes a token",
    f"{SCHEDULER.quotas.samples:,} samples open per tenant",
    f"{WAITS.sampler_wait_seconds:.0f} s without any sampler, or {WAITS.sample_seconds:.0f} s in one",
]
LOSSES = [
    f"A request may hold {GATEWAY.max_targets_per_position} targets per position",
    f"and {GATEWAY.max_targets_per_request:,} in all",
]
REST = [
    f"`limit` is 1 to {LARGEST_PAGE:,} (default {RUNS_PER_PAGE} for runs and sessions, {CHECKPOINTS_PER_PAGE} for ch",
    f"A search looks at\n{LOOKED_AT_MOST:,} sessions at most",
    f"More than {GATEWAY.max_downloads_per_tenant} downloads at once",
]
FIGURES = [("operate", text) for text in OPERATE]
FIGURES += [("sampling", text) for text in SAMPLING]
FIGURES += [("losses", text) for text in LOSSES]
FIGURES += [("rest", text) for text in REST]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (name, text)
        for name, texts in (("operate", OPERATE), ("sampling", SAMPLING), ("losses", LOSSES))
        for text in texts
    ],
)
def test_a_page_says_the_real_figure(name: str, text: str) -> None:
    assert text in page(name)


def test_the_page_of_lists_says_how_long_links_and_pages_are() -> None:
    assert LINK_SECONDS == 3600 and "without a key for an hour" in page("rest")
    assert RUNS_PER_PAGE == SESSIONS_PER_PAGE


def test_pages_name_settings_that_exist() -> None:
    known = {
        f"TINKERMESH_{service}_{field.name.upper()}"
        for service, kind in (("GATEWAY", Settings), ("SCHEDULER", SchedulerSettings))
        for field in msgspec.structs.fields(kind)
    }
    text = "\n".join(file.read_text() for file in DOCS.glob("*.md"))
    named = set(re.findall(r"TINKERMESH_(?:GATEWAY|SCHEDULER)_[A-Z_]+(?![A-Z_<])", text))
    prefixes = {name for name in named if name.endswith("_")}  # TINKERMESH_GATEWAY_<SETTING>
    assert named - prefixes and named - prefixes <= known


def test_the_table_of_limits_names_settings_of_the_gateway() -> None:
    settings = {field.name for field in msgspec.structs.fields(Settings)}
    named = {
        name for row in rows(page("operate"), "## What a gateway takes") for name in re.findall(r"`(\w+)`", row[1])
    }
    assert len(named) > 8 and named <= settings


def test_the_table_of_losses_is_what_gateway_and_trainer_do() -> None:
    """Inputs, defaults and shapes; the two services keep tables of their own."""
    told = {row[0].strip("`"): row for row in rows(page("losses"), "# Losses")}
    assert set(told) == set(RULES) == set(OBJECTIVES)
    for name, (_, _, inputs, config, shapes) in told.items():
        rule = RULES[name]
        assert set(re.findall(r"`(\w+)`", inputs)) == set(rule.fields), name
        defaults = {key: float(value) for key, value in re.findall(r"`(\w+)` ([\d.]+)", config)}
        assert defaults == rule.config == OBJECTIVES[name].defaults, name
        assert ("(N, K)" in shapes) == rule.matrix, name


@pytest.mark.parametrize("file", PAGES, ids=[file.name for file in PAGES])
def test_paths_and_links_of_a_page_lead_somewhere(file: Path) -> None:
    text = file.read_text()
    paths = re.findall(r"`((?:services|tests|docs|tools|benchmarks|demo|protos|charts?)/[\w./-]+)`", text)
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert [link for link in links if not (file.parent / link).exists()] == []


def test_the_page_of_releases_names_the_matrix() -> None:
    told = re.findall(r"^\| (\d+\.\d+\.\d+) \| (.*?) \|$", page("sdk-matrix"), re.MULTILINE)
    assert [version for version, _ in told] == list(VERSIONS)
    assert [version for version, run_by in told if "`make test`" in run_by] == [OLDEST, NEWEST]
