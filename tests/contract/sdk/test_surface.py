"""A release of the SDK that changes a default, a method or a field fails here before a user notices."""

from __future__ import annotations

import json
from pathlib import Path

from tests.contract.sdk.surface import difference, surface

KNOWN = json.loads((Path(__file__).parent / "surface.json").read_text())
REMEDY = """
The installed SDK is not the one the mesh was checked against. Read each line, serve what is new,
then accept it: python -m tests.contract.sdk.surface > tests/contract/sdk/surface.json
"""


def test_the_installed_sdk_promises_what_the_mesh_was_checked_against_API_09() -> None:
    changes = difference(KNOWN, surface())
    assert not changes, REMEDY + "\n".join(changes)


def test_a_changed_default_a_new_method_and_a_lost_field_are_each_reported() -> None:
    other = dict(KNOWN)
    other["message AdamParams.eps"] = "float = 1e-08"
    other["method ServiceClient.brand_new"] = "(self)"
    del other["protobuf Datum.model_input"]
    assert difference(KNOWN, other) == [
        f"changed: message AdamParams.eps: {KNOWN['message AdamParams.eps']} -> float = 1e-08",
        f"gone: protobuf Datum.model_input (was {KNOWN['protobuf Datum.model_input']})",
        "new: method ServiceClient.brand_new = (self)",
    ]
