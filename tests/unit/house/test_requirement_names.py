"""Requirements and tests: each has a test that names it, and a test that claims one names it whole."""

from __future__ import annotations

import re

import pytest

from tests.unit.house.test_import_graph import ROOT

GROUPS = (
    "API", "IDEM", "ORD", "PACK", "FAIL", "FUT", "LEASE", "VAL", "LOSS", "OPT", "CKPT", "SNAP", "SAMP", "JOB", "PDR",
    "TAIL", "SEC", "LAYER", "GAP", "MESH", "ADD",
)  # fmt: skip
NAME = rf"test_\w*?_(?:{'|'.join(GROUPS)})(?!_\d\d(?:_|\())(?:_\w*)?\("
HALF = re.compile(rf"^ *(?:async )?def {NAME}", re.MULTILINE)


SPECIFICATION = ROOT.parent / "shared" / "spec" / "requirements.md"
MUST = re.compile(r"\*\*([A-Z]+)-(\d\d) \[P[01]\]")


def test_every_requirement_of_the_first_two_priorities_is_named_by_a_test_LAYER_05() -> None:
    if not SPECIFICATION.is_file():
        pytest.skip("the numbered requirements do not come with the code")
    texts = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"([A-Z]+)_(\d\d)(?!\d)", texts)) | set(re.findall(r"([A-Z]+)-(\d\d)(?!\d)", texts))
    wanted = MUST.findall(SPECIFICATION.read_text())
    assert len(wanted) > 200
    assert [f"{group}-{number}" for group, number in wanted if (group, number) not in named] == []


def test_claimed_requirements_have_their_numbers() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in (ROOT / "tests").rglob("test_*.py")
        for name in HALF.findall(file.read_text())
    ]
    assert found == []


def test_half_a_name_would_be_found() -> None:
    assert HALF.search("def test_a_key_is_secret_SEC(")
    assert HALF.search("def test_a_key_is_secret_SEC_2_and_more(")
    assert not HALF.search("async def test_a_key_is_secret_SEC_02_API_06(")
    assert not HALF.search("def test_idem_is_no_group_in_lower_case(")
