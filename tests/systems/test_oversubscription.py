"""Nodes under switches whose way up carries less: a dimension of its own, as docs/systems.md has it."""

from fractions import Fraction
from pathlib import Path

import yaml

from stagedb.systems import CollectiveWork, Costs, Transfer, load_system, parse_system
from stagedb.systems.system import System

DOCS = Path(__file__).parents[2] / "docs" / "systems.md"
SIZE = 10**9


def documented(*, over: int) -> System:
    """The example of the page, with this ratio of what goes into a switch to what goes up, without tables."""
    text = DOCS.read_text(encoding="utf-8")
    example = text.partition("## Switches over switches")[2].partition("```yaml\n")[2].partition("```")[0]
    network = yaml.safe_load(example)["network"]
    assert [each["name"] for each in network] == ["nvlink", "leaf", "spine"]
    network[2]["bandwidth"] = network[1]["bandwidth"] / over
    made = {**load_system("h100").to_dict(), "network": network}
    del made["tables"]
    return parse_system(yaml.safe_dump(made))


def took(system: System, kind: str, ranks: range) -> int:
    return Costs(system, 1024).collective(CollectiveWork(kind, SIZE, tuple(ranks))).ns


def test_only_what_goes_up_is_slower() -> None:
    """Ranks 0 to 255 share a leaf of 32 nodes. Ranks of one rail are eight apart."""
    even, over = documented(over=1), documented(over=4)
    node, leaf, rail, both = range(8), range(256), range(0, 256, 8), range(0, 512, 8)
    for kind in ("all_reduce", "all_to_all", "all_gather"):
        for ranks in (node, leaf, rail):
            assert took(over, kind, ranks) == took(even, kind, ranks)
    latency = even.dimensions[2].latency
    # Half of an all-to-all of two leaves goes up: 1/2 of the buffer at a quarter of 50 GB/s.
    share = over.dimensions[2].efficiency.at(SIZE)
    assert took(over, "all_to_all", both) == round(latency + Fraction(SIZE, 2) / Fraction(25, 2) / share)
    assert took(over, "all_to_all", both) > 3 * took(even, "all_to_all", both)
    up = [Costs(each, 1024).transfer(Transfer(SIZE, 0, 256)).ns - latency for each in (even, over)]
    assert abs(up[1] - 4 * up[0]) <= 4


def test_an_all_reduce_goes_up_once_for_a_whole_leaf() -> None:
    even, over, far = (documented(over=ratio) for ratio in (1, 4, 640))
    both = range(0, 512, 8)
    assert took(over, "all_reduce", both) <= 1.1 * took(even, "all_reduce", both)
    assert took(far, "all_reduce", both) > 1.5 * took(even, "all_reduce", both)
