"""Each report has its provenance: the digests of its inputs, the versions, and commands that make it again."""

import html
import re
import shlex
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from stagedb.api import Provenance, Stagedb
from stagedb.models import load_card
from stagedb.store import Input, Store
from stagedb.systems import System, load_system
from tests.ir.tiny import card

WORDS: dict[str, Any] = {"tp": 2, "pp": 2, "seq_len": 64, "global_batch_size": 4, "recipe": "megatron"}


def section(page: str) -> dict[str, str]:
    """The facts of a page's provenance."""
    (found,) = re.findall(r"<h2>How this was made</h2>(.*?)</section>", page)
    return {
        html.unescape(name): html.unescape(value)
        for name, value in re.findall(r"<tr><td>(.*?)</td><td>(.*?)</td>", found)
    }


def words_of(command: str) -> dict[str, Any]:
    """A command's options as keywords."""
    parts = shlex.split(command)
    found: dict[str, Any] = {}
    for at, part in enumerate(parts):
        if part.startswith("--"):
            name, value = part.removeprefix("--").replace("-", "_"), parts[at + 1]
            found[name] = int(value) if value.isdecimal() else value
    return found


def test_a_report_has_the_command_that_makes_the_same_page(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    first = db.report(model="gpt2", system="a100-80gb", out=tmp_path / "first.html", **WORDS)
    page = first.path.read_text(encoding="utf-8")
    facts = section(page)
    assert facts["card gpt2"] == f"digest {load_card('gpt2').digest[:32]}"
    assert facts["system a100-80gb"] == f"digest {Input.of('system', load_system('a100-80gb').to_dict()).id}"
    assert facts["instance gpt2"] == f"digest {first.instance.id}"
    assert facts["versions"].startswith(f"stagedb {version('stagedb')}, python 3.")
    assert facts["random draws"] == "none"
    command = facts["made again by"]
    assert command.startswith("stagedb report --model gpt2 ")
    again = db.report(out=tmp_path / "again.html", **words_of(command))
    assert again.path.read_text(encoding="utf-8") == page
    assert db.report_page(first.profiles[0].id) == page


def test_a_report_of_an_own_model_names_its_profile(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    made = db.report(model=card("llama"), seq_len=8, scale=["compute:matmul=0.5"], out=tmp_path / "page.html")
    facts = section(made.path.read_text(encoding="utf-8"))
    assert facts["made again by"] == f"stagedb report --profile {made.profiles[0].id}"


def test_a_report_of_two_steps_has_the_inputs_of_both(store: Store, tmp_path: Path) -> None:
    db = Stagedb(store)
    made = [db.profile(model="gpt2", system=system, **WORDS) for system in ("h100", "a100-80gb")]
    page = db.report(made[0].info.id, made[1].info.id, out=tmp_path / "two.html").path.read_text(encoding="utf-8")
    (found,) = re.findall(r"<h2>How this was made</h2>(.*?)</section>", page)
    assert "<h3>gpt2 (first)</h3>" in found and "<h3>gpt2 (second)</h3>" in found
    for each in made:
        assert f"digest {Input.of('system', each.job.system.to_dict()).id}" in found
    assert db.report_page(made[0].info.id, made[1].info.id) == page


def system_of(provenance: Provenance) -> str | None:
    (found,) = (each["digest"] for each in provenance.inputs if each["kind"] == "system")
    return found


@pytest.mark.parametrize("given", ["model", "instance", "nothing"])
def test_the_command_of_advice_gives_the_same_advice(embedded_store: Store, given: str) -> None:
    db = Stagedb(embedded_store)
    small: dict[str, Any] = {"tp": 2, "seq_len": 64}
    made = db.instantiate("gpt2", **small) if given != "model" else None
    target = made.id if made is not None and given == "instance" else None
    asked: dict[str, Any] = {"model": "gpt2", **small} if given == "model" else {}
    found = db.advise(target, system="h200", blocking="tp", **asked)
    (command,) = found.provenance.commands
    parts = shlex.split(command)
    subject = [each for each in parts[2:3] if not each.startswith("--")]
    assert subject == ([] if made is None else [made.id])
    again = db.advise(*subject, **words_of(command))
    assert (again.step, again.changes, again.what_ifs) == (found.step, found.changes, found.what_ifs)
    assert again.provenance == found.provenance
    assert system_of(found.provenance) == Input.of("system", load_system("h200").to_dict()).id
    assert found.provenance.plan == found.plan


def test_a_changed_input_has_another_digest(embedded_store: Store) -> None:
    db = Stagedb(embedded_store)

    def digests(system: str | System, **words: Any) -> set[str | None]:
        return {each["digest"] for each in db.sensitivity(model="gpt2", system=system, **words).provenance.inputs}

    one = digests("h100", seq_len=64)
    assert digests(load_system("h100"), seq_len=64) == one
    assert len(one - digests("h100", seq_len=128)) == 1
    assert len(one - digests("h200", seq_len=64)) == 1
