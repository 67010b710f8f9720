"""`systems`, and `export --system`: what they print, and what they refuse."""

import json
from pathlib import Path

import pytest
import yaml

from stagedb import api
from stagedb.errors import UsageError
from stagedb.systems import load_system, system_names
from tests.cli.conftest import Run


def own(path: Path, **fields: object) -> Path:
    content = {**load_system("h100").to_dict(), "name": "ours", **fields}
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return path


def test_systems_are_listed_and_shown_without_a_store(offline: Run, tmp_path: Path) -> None:
    listed = offline("systems", "-f", "json")
    assert listed.status == 0, listed.err
    rows = json.loads(listed.out)
    assert [row["name"] for row in rows] == list(system_names())
    h100 = next(row for row in rows if row["name"] == "h100")
    assert (h100["bf16_tflops"], h100["memory_gb"], h100["reserve_gb"]) == (989.4, 84.922, 2.094006272)
    assert h100["network"] == "8 x nvlink 450 GB/s, infiniband 50 GB/s"
    shown = offline("systems", str(own(tmp_path / "ours.yaml")), "-f", "json")
    fields = {row["field"]: row["value"] for row in json.loads(shown.out)}
    assert (fields["name"], fields["accelerator.peak.bf16"], fields["network[1].bandwidth"]) == ("ours", 989.4, 50)
    assert fields["sources[1]"].startswith("NVIDIA H100 data sheet")
    assert fields["network[0].efficiency"][0] == [1000000, 0.3]
    assert offline("systems").status == 0


def test_a_file_that_is_no_system_is_refused(offline: Run, tmp_path: Path) -> None:
    unknown = offline("systems", "h10")
    assert (unknown.status, "did you mean h100" in unknown.err) == (2, True)
    wrong = offline("systems", str(own(tmp_path / "wrong.yaml", overlap={"streams": "many"})))
    assert wrong.status == 2
    assert "overlap.streams is 'many': it takes one of axis, one" in wrong.err
    assert "wrong.yaml, line " in wrong.err


def test_a_bundle_is_of_the_system_that_is_named(run: Run, tiny: str, tmp_path: Path) -> None:
    words = ("export", "--model", tiny, "--tp", "2", "--ranks", "4", "--system", str(own(tmp_path / "ours.yaml")))
    ran = run(*words, "--out", "out")
    assert ran.status == 0, ran.err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["system"] == load_system(tmp_path / "ours.yaml").to_dict()
    assert "# System ours," in (tmp_path / "out" / "network.yml").read_text()
    assert run(*words, "--out", "set.packed", "--packed").status == 0
    (tmp_path / "ours.yaml").unlink()
    assert run("unpack", "set.packed", "--out", "again").status == 0
    for name in ("network.yml", "system.json", "manifest.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_an_export_to_a_system_that_is_too_small_changes_nothing(run: Run, tiny: str, tmp_path: Path) -> None:
    network = [{**load_system("h100").to_dict()["network"][0], "size": 2}]
    system = own(tmp_path / "small.yaml", network=network)
    ran = run("export", "--model", tiny, "--ranks", "4", "--system", str(system), "--out", "out")
    assert ran.status == 2
    assert "the network of ours has 2 = 2 places, and the job has 4 ranks" in ran.err
    assert not (tmp_path / "out").exists()
    assert json.loads(run("ls", "-f", "json").out) == []
    missing = run("export", "--model", tiny, "--ranks", "4", "--system", "missing.yaml")
    assert (missing.status, "cannot read the system missing.yaml" in missing.err) == (2, True)


def test_measured_durations_come_from_tables_and_traces(tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text("kind,duration_us\nmatmul,5\n", encoding="utf-8")
    assert api.durations(tmp_path / "run.csv").rows[0].ns == 5000
    with pytest.raises(UsageError, match=r"are read from .csv or .parquet files, or Chakra traces"):
        api.durations(tmp_path / "run.xlsx")
