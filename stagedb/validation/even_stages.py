"""The ends of a model that a row's framework counts as layers, so that stages share them evenly."""

from collections.abc import Mapping
from typing import Any

from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.models import Card


def counted_ends(profile: FrameworkProfile, card: Card, words: Mapping[str, Any]) -> dict[str, str]:
    """The word `counted_ends` of a row, where only with the ends counted as layers the stages share the layers evenly.

    Tables have no column for it: 70 layers of BLOOM on 12 stages are 6 on each, where the embedding and the head take
    the place of one layer of the first and of the last stage. Empty for other rows. words: of the row's plan.
    """
    stages, chunks = words.get("pp") or 1, words.get("virtual_stages") or 1
    uneven = card.layers % stages != 0 and (card.layers + 2) % stages == 0
    return {"counted_ends": "both"} if profile.counts_ends and chunks == 1 and uneven else {}
