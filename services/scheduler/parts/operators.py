"""What operators talk to: the Admin service, and the Tenants service over the tenant book."""

from __future__ import annotations

from services.scheduler.admin import Admin
from services.scheduler.explanations import Explainer
from services.scheduler.parts.ground import Ground
from services.scheduler.results import Results
from services.scheduler.store.overview import Overview
from services.scheduler.tenancy.desk import TenantDesk
from services.scheduler.tenancy.keys import KeyDesk
from services.scheduler.tenancy.service import Tenants


def make_admin(ground: Ground, results: Results, explainer: Explainer) -> Admin:
    return Admin(
        overview=Overview(ground.redis),
        registry=ground.registry_store,
        directory=ground.directory,
        sessions=ground.session_store,
        samples=ground.sampling_store,
        results=results,
        explainer=explainer,
    )


def make_tenants(ground: Ground) -> Tenants:
    """Raises InvalidInput when the pepper cannot be read."""
    store, book = ground.tenancy_store, ground.book
    return Tenants(book, KeyDesk(store, book, ground.pepper), TenantDesk(store, book, ground.registry_store.pools))
