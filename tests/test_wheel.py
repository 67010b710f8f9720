"""The wheel: built from the checkout, installed into an environment of its own, and used from another directory."""

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from stagedb.store import embedded

ROOT = Path(__file__).parents[1]
INSIDE = ("py.typed", "cypher/analyze/communication/hotspots.cypher", "cypher/schema/store.cypher",
          "models/cards/llama3-8b.yaml", "systems/presets/h100.yaml", "reports/report.css",
          "reports/shared/candidates.js", "reports/shared/candidates.css",
          "reports/shared/colors.css", "reports/shared/parts.css", "reports/shared/parts.js",
          "serve/templates/base.html", "serve/static/cytoscape.min.js", "serve/static/cytoscape.LICENSE.txt",
          "serve/static/codemirror.min.js", "serve/static/cypher-language.min.js",
          "traces/chakra.proto", "validation/published.yaml")  # fmt: skip

CODE = """
import stagedb
with stagedb.connect() as db:
    print(db.show("tiny").ranks, len(db.query("hotspots")), stagedb.__file__)
"""


def run(*command: str | Path, at: Path, home: Path) -> str:
    kept = ("PATH", "HOME", "LANG", "PIP_INDEX_URL", "PIP_CACHE_DIR", "SSL_CERT_FILE", "HTTPS_PROXY", "TMPDIR")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment |= {"STAGEDB_HOME": str(home), "STAGEDB_CONFIG": os.devnull}
    ran = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone. Its dependencies are those of this environment, without the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    run(*pip, "wheel", "-q", "--no-deps", "-w", folder, ROOT, at=folder, home=folder)
    (wheel,) = folder.glob("stagedb-*.whl")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "env", at=folder, home=folder)
    python = folder / "env" / "bin" / "python"
    run(*pip, "--python", python, "install", "-q", "--no-deps", wheel, at=folder, home=folder)
    # A path in a .pth file does not run the .pth files there, of which one would lead to the checkout.
    (package,) = (folder / "env").glob("lib/python*/site-packages")
    (package / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder / "env"


def test_the_wheel_has_all_files(environment: Path) -> None:
    (package,) = environment.glob("lib/python*/site-packages/stagedb")
    assert [name for name in INSIDE if not (package / name).is_file()] == []
    for folder in ("cypher", "stagedb/models/cards", "stagedb/systems/presets"):
        names = {path.name for path in (ROOT / folder).rglob("*.*") if path.suffix in (".cypher", ".yaml")}
        assert names <= {path.name for path in (package / folder.removeprefix("stagedb/")).rglob("*.*")}


def test_every_dependency_is_declared(environment: Path) -> None:
    declared = [Requirement(each) for each in requires("stagedb") or [] if "extra ==" not in each]
    assert len(declared) > 10
    for each in declared:
        assert each.specifier.contains(version(each.name)), each


def test_the_wheel_works_outside_of_the_checkout(environment: Path, tmp_path: Path) -> None:
    """From `--version` to traces and a profile, with the command and in Python."""
    home, place = tmp_path / "home", tmp_path / "place"
    place.mkdir()
    stagedb = environment / "bin" / "stagedb"
    (place / "tiny.yaml").write_text(
        (ROOT / "stagedb/models/cards/gpt2.yaml").read_text(encoding="utf-8").replace("name: gpt2", "name: tiny"),
        encoding="utf-8",
    )
    try:
        assert run(stagedb, "--version", at=place, home=home).startswith("stagedb ")
        assert "llama3-8b" in run(stagedb, "models", at=place, home=home)
        plan = ("--model", "tiny.yaml", "--tp", "2", "--ranks", "4")
        assert " on h100, in " in run(stagedb, "profile", *plan, at=place, home=home)
        assert "4 traces of tiny" in run(stagedb, "export", "--out", "traces", at=place, home=home)
        assert "sound: 4 ranks" in run(stagedb, "validate", "traces", at=place, home=home)
        shown = run(environment / "bin" / "python", "-c", CODE, at=place, home=home).split()
        assert shown[0] == "4"
        assert int(shown[1]) > 0
        assert Path(shown[2]).is_relative_to(environment)
    finally:
        embedded.stop(home)
