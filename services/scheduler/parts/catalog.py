"""The catalog put together: runs, checkpoints, sessions, copies and downloads."""

from __future__ import annotations

from functools import cached_property

from services.scheduler.catalog.checkpoints import Checkpoints
from services.scheduler.catalog.copies import Copies
from services.scheduler.catalog.downloads import Downloads
from services.scheduler.catalog.runs import TrainingRuns
from services.scheduler.catalog.server import Catalog
from services.scheduler.catalog.sessions import SessionCatalog
from services.scheduler.catalog.sweeper import CatalogSweeper
from services.scheduler.parts.ground import Ground
from services.scheduler.ports import ModelBook


class CatalogParts:
    """Each part is made once, at its first use."""

    def __init__(self, ground: Ground, models: ModelBook) -> None:
        self._ground = ground
        self._models = models

    @cached_property
    def runs(self) -> TrainingRuns:
        return TrainingRuns(self._ground.catalog_store, self._models, self._ground.artifacts)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self._ground.catalog_store, self._ground.artifacts)

    @cached_property
    def service(self) -> Catalog:
        store, artifacts = self._ground.catalog_store, self._ground.artifacts
        return Catalog(
            runs=self.runs,
            checkpoints=self.checkpoints,
            sessions=SessionCatalog(store, self._ground.session_store),
            copies=Copies(store, artifacts, self._ground.session_directory),
            downloads=Downloads(artifacts),
            store=store,
            artifacts=artifacts,
        )

    @cached_property
    def sweeper(self) -> CatalogSweeper:
        return CatalogSweeper(self._ground.catalog_store, self._ground.artifacts)
