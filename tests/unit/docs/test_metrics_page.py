"""docs/metrics.md lists every metric there is, as the services declare them."""

from __future__ import annotations

import re

from tools import metrics_doc


def test_the_page_is_what_the_services_declare() -> None:
    assert metrics_doc.TARGET.read_text() == metrics_doc.page(), "run: python tools/metrics_doc.py"


def test_names_units_and_labels_follow_one_rule() -> None:
    """Counters end with _total, names are unique, and no label asks for an id."""
    declared = [one for section in metrics_doc.SECTIONS.values() for one in section]
    names = [one.name for one in declared]
    assert len(names) == len(set(names))
    for one in declared:
        assert re.fullmatch("[a-z_]+", one.name), one.name
        assert (one.kind == "counter") == one.name.endswith("_total"), one.name
        assert one.meaning.endswith("."), one.name
        assert not {"tenant", "model", "session", "request", "adapter", "path_name", "key"} & set(one.labels), one.name
