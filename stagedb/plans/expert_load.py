"""The load of experts as people write it: whole numbers of choices, or shares, which become whole choices of a rank."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import lcm
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import read_document, shown
from stagedb.mentions import Word
from stagedb.plans.expert_checks import routed, smallest
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.written_words import joined_rows, share, typed_words

Load = tuple[int | Fraction, ...]
"""A number for each expert. One fraction among them makes all of them shares."""


def read_load(path: Path) -> Load:
    """The load in a YAML or JSON file: a list of numbers, one for each expert. UsageError for other content."""
    content = read_document(path, "load of experts", option=str(Word("expert_load")))
    if not isinstance(content, list) or not content:
        raise UsageError(
            f"the load of experts {path} is no list: {Word('expert_load')} takes whole numbers, such as [3, 1], or "
            "shares, such as [0.75, 0.25]"
        )
    found: list[int | Fraction] = []
    for index, value in enumerate(content):
        number = share(value)
        if number is None:
            raise UsageError(
                f"{path}: the load of expert {index} is {shown(value)}: it must be a whole number, or a share such as "
                "0.25"
            )
        found.append(number)
    return tuple(found)


def read_routing(path: Path) -> tuple[str, ...]:
    """The routing in a YAML or JSON file: for each of some tokens, the list of its experts, as a row of text each.

    Raises UsageError for other content.
    """
    content = read_document(path, "routing", option=str(Word("routing")))
    if not isinstance(content, list) or not content:
        raise UsageError(
            f"the routing {path} is no list: {Word('routing')} takes a list of experts for each token, such as [[3, "
            "1], [0, 2]]"
        )
    rows = joined_rows(content)
    for token, row in enumerate(rows):
        if not isinstance(row, str) or row is content[token]:
            raise UsageError(f"{path}: token {token} has {shown(row)} in place of a list of experts, such as [3, 1]")
    return tuple(map(str, rows))


def has_shares(load: str | Sequence[object] | None) -> bool:
    """Whether a load, as a user gives it, has shares. A text is the name of a file, or numbers."""
    if load is None:
        return False
    found = typed_words({"expert_load": load})["expert_load"]
    return any(isinstance(each, Fraction) for each in (read_load(Path(found)) if isinstance(found, str) else found))


def whole_ratio(load: str | Load) -> tuple[int, ...]:
    """The load in whole numbers of the same ratio. A text is the name of a file with it."""
    found = read_load(Path(load)) if isinstance(load, str) else load
    common = lcm(*(each.denominator for each in found))
    return tuple(int(each * common) for each in found)


def with_whole_choices(
    words: Mapping[str, Any], sizes: Mapping[str, int], make: Callable[[Mapping[str, Any]], PlanFields]
) -> Mapping[str, Any]:
    """The words of a plan, with shares of experts as the choices of one rank in one micro-batch for a model's sizes.

    make: the plan of words. Shares that no model can have remain as they are, for the checks of the plan.
    """
    load = words.get("expert_load")
    if isinstance(load, str):
        load = read_load(Path(load))
        words = {**words, "expert_load": load}
    if not load or all(isinstance(each, int) for each in load) or len(load) != sizes.get("E"):
        return words
    own, total = routed(make({**words, "expert_load": None, "capacity_factor": None}), sizes), sum(load)
    if own.denominator > 1 or min(load) < 0 or not total or max(load) * sizes["K"] > total:
        return words
    return {**words, "expert_load": smallest(_rounded([each * int(own) / total for each in load], int(own)))}


def _rounded(exact: Sequence[Fraction], total: int) -> tuple[int, ...]:
    """Whole numbers with this sum next to the exact ones: those with the largest remainders are rounded up."""
    found = [int(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda index: found[index] - exact[index])
    for index in by_remainder[: total - sum(found)]:
        found[index] += 1
    return tuple(found)
