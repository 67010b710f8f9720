"""The words that a plan has where nobody gave one."""

import subprocess
import sys

import pytest

from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.usual_words import USUAL_RECIPE, usual_words


@pytest.mark.parametrize("recipe", sorted(FRAMEWORKS))
def test_they_are_those_of_a_plan_without_words(recipe: str) -> None:
    words = usual_words(recipe)
    assert words == Plan(options=GraphOptions(recipe=recipe)).to_dict()
    assert words["recipe"] == recipe
    assert GraphOptions().recipe == USUAL_RECIPE


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown recipe"):
        usual_words("jax")


def test_they_are_read_without_models() -> None:
    code = (
        "import sys, stagedb.api.plan_texts as texts\nprint(texts.describe({'tp': 4}))\n"
        "print([name for name in ('stagedb.plans.plan', 'stagedb.models', 'yaml', 'numpy') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "tp 4\n[]\n"
