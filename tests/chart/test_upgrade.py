"""Values of an older release render with this chart, and what cannot be changed in place has not changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm import Rendered, example, render

GOLDEN = Path(__file__).parent / "golden"
RELEASES = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
FIXED = {
    "Deployment": ["selector"],
    "StatefulSet": ["selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates"],
    "Service": ["clusterIP"],
    "PersistentVolumeClaim": ["accessModes", "storageClassName"],
}
CASES = [(release, path) for release in RELEASES for path in sorted((release / "values").glob("*.yaml"))]


def fixed(rendered: Rendered) -> dict[str, Any]:
    """Every fixed field of every object; labels of claim templates are fixed too."""
    return {
        f"{key}:{name}": item["spec"].get(name)
        for key, item in rendered.by_key.items()
        for name in FIXED.get(item["kind"], [])
    }


@pytest.mark.parametrize(("release", "path"), CASES, ids=lambda part: part.stem if part.suffix else part.name)
def test_an_upgrade_changes_nothing_that_the_server_refuses_to_change(release: Path, path: Path) -> None:
    """golden/<version>/values are the examples of that release, <name>.fixed.yaml what it rendered.

    A new release adds a directory (python -m tests.chart.test_upgrade); an old one is never written again.
    """
    was: dict[str, Any] = yaml.safe_load((release / f"{path.stem}.fixed.yaml").read_text())
    now = fixed(render(example(path)))
    assert {key: now.get(key, "gone") for key in was} == was


def test_the_current_release_is_recorded() -> None:
    version = yaml.safe_load((GOLDEN.parent.parent.parent / "charts/tinkermesh/Chart.yaml").read_text())["version"]
    assert (GOLDEN / version).is_dir(), "run: python -m tests.chart.test_upgrade"


def record() -> None:
    """Writes the directory of the current version."""
    from tests.chart.helm import CHART, EXAMPLES

    release = GOLDEN / str(yaml.safe_load((CHART / "Chart.yaml").read_text())["version"])
    (release / "values").mkdir(parents=True, exist_ok=True)
    for path in EXAMPLES:
        (release / "values" / path.name).write_text(path.read_text())
        (release / f"{path.stem}.fixed.yaml").write_text(yaml.safe_dump(fixed(render(example(path)))))


if __name__ == "__main__":
    record()
