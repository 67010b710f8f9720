"""The ends of a model that a row's framework counts as layers, so that stages share them evenly."""

from collections.abc import Mapping
from typing import Any

from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.models import Card


def counted_ends(profile: FrameworkProfile, card: Card, words: Mapping[str, Any]) -> dict[str, str]:
    """The word for it where stages of one chunk share the layers unevenly without the ends, and evenly with them.

    A table has no word for it: 70 layers of BLOOM on 12 stages are 6 on each, and the embedding and the head are in
    place of one layer of the first and of the last.
    """
    stages, chunks = words.get("pp") or 1, words.get("virtual_stages") or 1
    uneven = card.layers % stages != 0 and (card.layers + 2) % stages == 0
    return {"counted_ends": "both"} if profile.counts_ends and chunks == 1 and uneven else {}
