"""Takes the pictures of pages that docs/serve.md shows: a store with some plans, a search and a run, in Chromium.

    .venv/bin/python -m docs.page_pictures            all pictures
    .venv/bin/python -m docs.page_pictures NAME …     some pictures

Pictures are of what a screen shows first. Times and dates in them are those of the day on which they were taken.
"""

import base64
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from stagedb.api import Stagedb
from stagedb.store import connect, embedded
from tests.browsing import Browser, browsing
from tests.matching.recorded import FOLDER
from tests.serve.served import serving

IMAGES = Path(__file__).with_name("images")
MODEL = "llama3-8b"
PLANS: Mapping[str, Mapping[str, Any]] = {
    "base": {"tp": 8},
    "stages": {"tp": 4, "pp": 2},
    "sharded": {"dp": 8, "zero": 3},
    "wide": {"tp": 2, "dp": 4, "zero": 1},
    "deep": {"pp": 4, "tp": 2},
}
CHART = """
MATCH (p:Profile)-[:HAS_LANE]->(l:LaneTime)-[:HAS_OP_TIME]->(t:OpTime)-[:OF]->(o:Op)
WHERE p.id = $profile
RETURN o.kind AS kind, sum(t.total) / 1e6 AS milliseconds ORDER BY milliseconds DESC LIMIT 8
"""


@dataclass(frozen=True)
class Shot:
    """A page as a picture of what a screen shows first."""

    path: str
    width: int = 1280
    height: int = 800
    dark: bool = False


def stock(db: Stagedb) -> dict[str, Shot]:
    """Fill a store. The pictures, by name."""
    made = {
        name: db.profile(
            db.instantiate(MODEL, name=name, ranks=8, global_batch_size=16, **words).id, system="h100", name=name
        )
        for name, words in PLANS.items()
    }
    for profile in made.values():
        db.memory(profile.instance.id)
    search = db.search(MODEL, [8], system="h100", words={"global_batch_size": 16})
    db.import_run(FOLDER / "fsdp-no-reduction", name="dropped")
    expected = db.profile(db.match("dropped").instance.id, system="h100", name="expected")
    base, stages, sharded = (made[name] for name in ("base", "stages", "sharded"))
    compared = urlencode([("of", each.info.id) for each in (sharded, stages, base)])
    asked = urlencode({"query": CHART.strip(), "profile": stages.info.id, "view": "chart"})
    given = urlencode({"tokens": "15T", "price_hour": "2.5", "watts": "1000", "price_kwh": "0.12"})
    return {
        "page-home": Shot("/"),
        "page-list": Shot("/list/instances?sort=tokens"),
        "page-list-phone": Shot("/list/instances?sort=tokens", 400, 800, dark=True),
        "page-compare": Shot(f"/compare?{compared}"),
        "page-profile": Shot(f"/profiles/{stages.info.id}"),
        "page-memory": Shot(f"/instances/{stages.instance.id}/memory", height=1_050),
        "page-search": Shot(f"/searches/{search.id}"),
        "page-run": Shot(f"/compare?{urlencode([('of', 'dropped'), ('of', expected.instance.id)])}"),
        "page-explore": Shot(f"/explore?node=Profile/{stages.info.id}"),
        "page-cypher": Shot(f"/cypher?{asked}"),
        "page-summary": Shot(f"/profiles/{sharded.info.id}/summary?{given}"),
        "page-profile-dark": Shot(f"/profiles/{base.info.id}", dark=True),
    }


def take(browser: Browser, address: str, shot: Shot, file: Path) -> None:
    """Save what a screen shows of a page."""
    browser.visit(address + shot.path, shot.width, shot.dark)
    browser.call(
        "Emulation.setDeviceMetricsOverride", width=shot.width, height=shot.height, deviceScaleFactor=1, mobile=False
    )
    browser.call("Emulation.setScrollbarsHidden", hidden=True)
    time.sleep(2)  # layouts and editors come after the page
    made = browser.call("Page.captureScreenshot", format="png")
    file.write_bytes(base64.b64decode(made["data"]))


def main(names: list[str]) -> int:
    with tempfile.TemporaryDirectory(prefix="stagedb-pictures-") as name:
        home = Path(name) / "store"
        environment = {**os.environ, "STAGEDB_HOME": str(home), "NEO4J_URI": "", "STAGEDB_CONFIG": os.devnull}
        try:
            with connect(home=home, environment=environment) as store, browsing(Path(name) / "browser") as browser:
                shots = stock(Stagedb(store))
                with serving(store) as served:
                    for each, shot in shots.items():
                        if not names or each in names:
                            take(browser, served.address, shot, IMAGES / f"{each}.png")
                            sys.stdout.write(f"{each}\n")
        finally:
            embedded.stop(home)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
