"""Request bodies of the catalog's routes, as SDK 0.38.0 and 0.26.2 send them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta, field

from services.gateway.wire.json_body import Body, Counter

Label = Annotated[str, Meta(min_length=1, max_length=1024)]


class Ttl(Body):
    """`ttl_seconds` must be there: null clears it."""

    ttl_seconds: int | None


class Project(Body):
    project_id: Label


class CopyWeights(Body):
    source_path: str
    session_id: str | None = None
    model_seq_id: Counter | None = None
    destination_project_id: Label | None = None
    ttl_seconds: int | None = None
    weights_access_token: str | None = None


class SearchOwner(Body):
    type: Literal["own", "accessible", "user"] = "own"
    owner_urns: Annotated[list[Label], Meta(max_length=10)] = []


class StatusQuery(Body):
    type: Literal["active", "cancelled", "failed", "client_finished"]
    reasons: list[Literal["success", "errored", "interrupted"]] | None = None


class SearchCursor(Body):
    last_created_at: Annotated[datetime, Meta(tz=True)]
    last_session_id: str


class SearchSessions(Body):
    session_id: Label | None = None
    project_ids: Annotated[list[Label], Meta(max_length=128)] | None = None
    user_metadata: Annotated[dict[Label, str], Meta(max_length=64)] = {}
    display_name: Label | None = None
    owner: SearchOwner = field(default_factory=SearchOwner)
    statuses: Annotated[list[StatusQuery], Meta(min_length=1, max_length=16)] | None = None
    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    cursor: SearchCursor | None = None
