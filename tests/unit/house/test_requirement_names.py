"""A test that claims a requirement names it whole: a group without a number says nothing that can be looked up."""

from __future__ import annotations

import re

from tests.unit.house.test_import_graph import ROOT

GROUPS = (
    "API", "IDEM", "ORD", "PACK", "FAIL", "FUT", "LEASE", "VAL", "LOSS", "OPT", "CKPT", "SNAP", "SAMP", "JOB", "PDR",
    "TAIL", "SEC", "LAYER", "GAP", "MESH", "ADD",
)  # fmt: skip
NAME = rf"test_\w*?_(?:{'|'.join(GROUPS)})(?!_\d\d(?:_|\())(?:_\w*)?\("
HALF = re.compile(rf"^ *(?:async )?def {NAME}", re.MULTILINE)


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
