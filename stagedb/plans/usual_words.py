"""The words of a plan without any word: lists of plans are read without models and checks of plans."""

from typing import Any

from stagedb.plans.aspects import FORMAT_WORDS, GRAPH_WORDS, LAYOUT_WORDS, default_words, plain_words
from stagedb.plans.dtypes import Dtypes

USUAL_RECIPE: str = GRAPH_WORDS["recipe"].default


def usual_words(recipe: str) -> dict[str, Any]:
    """`Plan(options=GraphOptions(recipe=recipe)).to_dict()`: the defaults, with the framework's number formats.

    recipe: the framework's name. Raises UsageError for a name that is not known.
    """
    words = default_words({**LAYOUT_WORDS, **GRAPH_WORDS})
    return {**words, "recipe": recipe, **plain_words(FORMAT_WORDS, Dtypes.of(recipe))}
