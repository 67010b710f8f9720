"""A plan, or a graph's options, in short: for lists and pages."""

import functools
from collections.abc import Mapping

from stagedb.plans.short_plans import place_of

LONGEST_WORD = 40
"""Characters of one value in a plan's description."""


@functools.lru_cache(64)
def _defaults(recipe: str | None) -> Mapping[str, object]:
    """The plan of a recipe without any further word. A list of a thousand plans asks for it a thousand times.

    recipe: the framework's name; None for the usual one.
    """
    from stagedb.plans.usual_words import USUAL_RECIPE, usual_words

    return usual_words(USUAL_RECIPE if recipe is None else recipe)


def describe(words: Mapping[str, object]) -> str:
    """A plan's words, or a graph's options, in short: those that differ from the defaults, the degrees first."""
    usual = _defaults(None)
    recipe_usual = _defaults(str(words.get("recipe", usual["recipe"])))
    parts = []
    for word, value in sorted(words.items(), key=lambda item: place_of(item[0])):
        if value == usual.get(word) or (word.endswith("dtype") and value == recipe_usual.get(word)):
            continue
        name = word.replace("_", "-")
        if isinstance(value, bool):
            parts.append(name if value else f"no-{name}")
        elif value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            # An order of tasks can have thousands of words.
            parts.append(f"{name} {text if len(text) <= LONGEST_WORD else text[:LONGEST_WORD] + '…'}")
    return " ".join(parts) or "default options"
