"""`stagedb match`: what is found and open, in the words of the command line."""

from pathlib import Path
from typing import Any

import pytest

from stagedb.plans.aspects import PLAN_WORDS
from tests.matching.recorded import FOLDER
from tests.runs.recordings import step

FLAGS = {flag for word in PLAN_WORDS.values() for flag in "/".join(word.flags).split("/")}


@pytest.mark.parametrize(
    ("name", "options", "open_"),
    [
        ("tp", ["--tp 4", "--sp", "--gather-logits"], ["a model with tied false may be a model with tied true"]),
        ("pp", ["--pp 4", "--schedule 1f1b", "--grad-sync"],
         ["--grad-sync may be --no-grad-sync", "--no-clip-norm may be --clip-norm"]),
    ],
)  # fmt: skip
def test_words_of_a_plan_are_options(run: Any, name: str, options: list[str], open_: list[str]) -> None:
    run("import", str(FOLDER / name), "--name", name)
    lines = run("match", name).out.splitlines()
    found = lines[0].removeprefix("found: ")
    undecided = [line.removeprefix("undecided: ") for line in lines if line.startswith("undecided: ")]
    assert all(f" {option} " in f" {found} " for option in options)
    assert {word for line in (found, *undecided) for word in line.replace(",", "").split() if word[0] == "-"} <= FLAGS
    assert [each for each in undecided if "recompute" not in each] == open_


def test_a_run_whose_plan_is_not_found_leads_to_other_questions(run: Any, tmp_path: Path) -> None:
    step(0, 1).write(tmp_path)
    run("import", str(tmp_path), "--name", "base")
    refused = run("match", "base")
    assert refused.status == 2 and "the rest of its plan does not follow" in refused.err
    short = refused.err.split()[2]
    for command in (f"stagedb query critical-breakdown --run {short}", f"stagedb diff {short} OTHER"):
        assert f"`{command}`" in refused.err
        assert run(*command.replace("OTHER", "base").split()[1:]).status == 0
