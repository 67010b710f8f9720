"""Libraries of a browser: the files that are there are those of the lock file, with their licences."""

import gzip
import http.client
import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from stagedb.store import Store
from tests.serve.served import serving

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "stagedb/serve/static"
LOCK = json.loads((ROOT / "scripts/bundling/package-lock.json").read_text(encoding="utf-8"))["packages"]
BUNDLES = sorted(path.name.removesuffix(".min.js") for path in STATIC.glob("*.min.js"))


def locked(name: str) -> tuple[str, str]:
    """Version and licence of a package in the lock file."""
    found = LOCK[f"node_modules/{name}"]
    return found["version"], found["license"]


def test_there_are_bundles() -> None:
    assert BUNDLES == ["codemirror", "cypher-language", "cytoscape"]


@pytest.mark.parametrize("name", BUNDLES)
def test_a_bundle_has_the_versions_of_the_lock_file_and_their_licences(name: str) -> None:
    head = (STATIC / f"{name}.min.js").read_text(encoding="utf-8").splitlines()[0]
    parts = re.findall(r"(\S+) (\d\S*) \(([^)]+)\)", head)
    assert parts
    assert [(version, licence) for _, version, licence in parts] == [locked(of) for of, _, _ in parts]
    licences = (STATIC / f"{name}.LICENSE.txt").read_text(encoding="utf-8")
    assert [of for of, version, licence in parts if f"{of} {version} ({licence})\n" not in licences] == []
    assert licences.count("Permission is hereby granted") + licences.count("Apache License") >= 1


def test_axe_is_that_of_the_lock_file() -> None:
    head = (ROOT / "tests/serve/axe.min.js").read_text(encoding="utf-8")[:200]
    assert f"axe v{locked('axe-core')[0]}" in head
    assert "Mozilla Public License" in (ROOT / "tests/serve/axe.LICENSE.txt").read_text(encoding="utf-8")


def test_a_browser_keeps_libraries(embedded_store: Store) -> None:
    """They are large: without a change only the question whether there is one travels."""
    with serving(embedded_store, "a-token-for-the-tests") as served:
        connection = http.client.HTTPConnection(urlsplit(served.address).netloc, timeout=300)
        connection.request("GET", "/static/cypher-language.min.js", headers={"accept-encoding": "gzip"})
        first = connection.getresponse()
        packed = first.read()
        connection.close()
        assert (first.status, first.headers["cache-control"]) == (200, "no-cache")
        assert gzip.decompress(packed) == (STATIC / "cypher-language.min.js").read_bytes()
        again = served.get("/static/cypher-language.min.js", if_none_match=first.headers["etag"])
        assert (again.status, again.text) == (304, "")
