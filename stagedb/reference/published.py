"""Published numbers, computed again: `published.yaml` beside this file, and the parameter counts of the model cards."""

import dataclasses
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from stagedb.api import Stagedb
from stagedb.export import chakra_pb2 as pb
from stagedb.export import read_trace
from stagedb.models import Card, card_names, load_card
from stagedb.parallel.dtypes import WIDTHS

UNITS: Mapping[str, int] = {"million": 10**6, "billion": 10**9}

_QUANTITY = re.compile(r"(?P<what>[^\[]+?)(?: \[(?P<unit>\w+)\])?")
_ELEMENTS = re.compile(r"elements of (?P<kind>\w+), rank (?P<rank>\d+)")


@dataclass(frozen=True)
class Published:
    """A number as it was printed, and ours for the same."""

    source: str
    quantity: str
    reference: float
    ours: float

    @property
    def agrees(self) -> bool:
        """Whether ours, rounded to as many digits as were printed, is the printed number."""
        text = str(self.reference)
        return round(self.ours, len(text.split(".")[1]) if "." in text else 0) == self.reference

    @property
    def ratio(self) -> float:
        return self.ours / self.reference


def check_published(db: Stagedb, progress: Callable[[int, int], None] = lambda done, of: None) -> Iterator[Published]:
    """Every number. What was made in the store for it is removed again."""
    for name in card_names():
        card = load_card(name)
        if card.parameters:
            yield Published(card.source, f"parameters of {name}", card.parameters, card.count_parameters())
    rows = _rows()
    for done, row in enumerate(rows):
        progress(done, len(rows))
        yield from _row(db, row)
    progress(len(rows), len(rows))


def _rows() -> list[Mapping[str, Any]]:
    text = resources.files(__package__).joinpath("published.yaml").read_text(encoding="utf-8")
    rows: list[Mapping[str, Any]] = yaml.safe_load(text)
    return rows


def _row(db: Stagedb, row: Mapping[str, Any]) -> Iterator[Published]:
    card = dataclasses.replace(load_card(row["model"]), **row.get("sizes", {}))
    known = {graph.id for graph in db.graphs()}
    instance = db.instantiate(card, **row["plan"])
    try:
        for quantity, reference in row["printed"].items():
            match = _QUANTITY.fullmatch(quantity)
            if match is None:
                raise ValueError(f"published.yaml: {quantity!r} is no quantity")
            ours = _ours(db, card, instance.id, match["what"]) / UNITS.get(match["unit"] or "", 1)
            exact = int(ours) if isinstance(reference, int) else ours
            yield Published(row["source"], f"{quantity} of {_title(card, row['plan'])}", reference, exact)
    finally:
        if instance.new:
            db.rm(instance.id)
        if instance.graph not in known:
            db.rm(instance.graph)


def _title(card: Card, plan: Mapping[str, Any]) -> str:
    degrees = (f"{axis} {plan[axis]}" for axis in ("tp", "pp", "dp", "zero") if plan.get(axis, 1) > 1)
    return " ".join([card.name, *degrees])


def _ours(db: Stagedb, card: Card, instance: str, what: str) -> int:
    elements = _ELEMENTS.fullmatch(what)
    if elements is not None:
        return _elements(db, instance, int(elements["rank"]))[elements["kind"]]
    if what == "parameters":
        return card.count_parameters()
    if what == "FLOPs of a step":
        return sum(
            int(row["ranks"]) * int(row["runs"]) * int(flops)
            for row in db.store.read("reference/step_flops", instance=instance)
            for flops in row["flops"]
        )
    raise ValueError(f"published.yaml: nobody computes {what!r}")


def _elements(db: Stagedb, instance: str, rank: int) -> Counter[str]:
    """What a rank sends in a step, by kind: elements of each operation's input on that rank, from its trace."""
    with tempfile.TemporaryDirectory(prefix="stagedb-check-") as scratch:
        done = db.export(instance, only=str(rank), out=Path(scratch) / "traces")
        trace = read_trace(next(done.path.glob(f"*.{rank}.et")))
    found: Counter[str] = Counter()
    columns = trace.attributes
    for index, node in enumerate(trace.types):
        if node != pb.COMP_NODE:
            found[columns["kind"][index]] += columns["comm_size"][index] // WIDTHS[columns["dtype"][index]]
    return found
