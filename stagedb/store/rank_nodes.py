"""Nodes of ranks and groups: written once an instance, when a text that somebody asks can reach them.

An instance keeps the numbers from which its ranks and groups follow (`stagedb.plans.RankLayout`), and how many of the
nodes are written. Each transaction writes the next ones and moves these counts, under the lock of the instance. So
several processes may write at once, and one that was killed is followed by the next. Instances that an older stagedb
made have all nodes and no such numbers.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.store.events import new_claim
from stagedb.store.failures import OutOfMemory, ReadOnlyError
from stagedb.store.free_queries import CLOSING, OPENING, Token, UnclosedError, tokens
from stagedb.store.row_checks import reading, warn_of

if TYPE_CHECKING:
    from stagedb.plans import RankLayout
    from stagedb.store.connection import Store

# Which instances' rank and group nodes a text can reach.
#
# These nodes are written when somebody asks for them, so a text that could reach one must be known before it runs. What
# is not understood counts as one that reaches all.
#
# A `Rank` has no relationships, and a `Group` only `HAS_GROUP`. So a text reaches them by these names, or by a node
# without label that no relationship of another type leads to.

_NAMES = frozenset({"rank", "group", "has_group"})
_FUNCTIONS = frozenset(
    (
        *("abs", "avg", "ceil", "collect", "count", "date", "datetime", "elementid", "endnode", "exp", "floor", "head"),
        *("id", "isempty", "keys", "labels", "last", "length", "log", "max", "min", "nodes", "properties", "rand"),
        *("relationships", "reverse", "round", "sign", "size", "sqrt", "startnode", "stdev", "stdevp", "sum", "tail"),
        *("timestamp", "toboolean", "tofloat", "tointeger", "tolower", "tostring", "toupper", "trim", "type"),
    )
)
"""Functions whose brackets are no pattern. In those of an unknown word a single name counts as a node."""


def instances_reached(text: str, params: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Ids of the instances whose ranks and groups a text can reach; None for those of all. params: its parameters."""
    try:
        reader = _Reader([*tokens(text)])
    except UnclosedError:
        return None
    wanted = reader.parameters()
    if wanted is None:
        return None
    return tuple(sorted({id for name in wanted if isinstance(id := params.get(name), str)}))


def names_ranks(text: str) -> bool:
    """Whether a text has the label of ranks or groups, or their relationship, or what cannot be read.

    Other texts reach them only as nodes among all others.
    """
    try:
        reader = _Reader([*tokens(text)])
    except UnclosedError:
        return True
    return reader.named()


class _Reader:
    """The tokens of a text, and the end of each bracket."""

    def __init__(self, found: Sequence[Token]) -> None:
        self._found = found
        self._ends = dict(_brackets(found))
        self._starts = {end: start for start, end in self._ends.items()}

    def named(self) -> bool:
        """Whether a label or type of ranks and groups is anywhere."""
        return any(self._names(at) for at in range(len(self._found)))

    def parameters(self) -> set[str] | None:
        """The parameters with the ids of the instances that are reached; None for all instances."""
        if any(self._word(at) == "CALL" and self._word(at + 1) == "DB" for at in range(len(self._found))):
            return None
        if any(self._is_open(at) for at in range(len(self._found))):
            return None
        wanted = set()
        for at in range(len(self._found)):
            if self._names(at):
                owner = self._owner_of_relationship(at) if self._name(at) == "has_group" else self._owner_of_node(at)
                if owner is None:
                    return None
                wanted.add(owner)
        return wanted

    def _text(self, at: int) -> str:
        return self._found[at].text if 0 <= at < len(self._found) else ""

    def _word(self, at: int) -> str:
        return self._text(at).upper()

    def _name(self, at: int) -> str:
        return self._text(at).strip("`").casefold()

    def _is_name(self, at: int) -> bool:
        return 0 <= at < len(self._found) and self._found[at].kind in ("word", "name")

    def _names(self, at: int) -> bool:
        """Whether a label or a relationship's type is one of those of ranks and groups."""
        return (
            self._is_name(at)
            and self._name(at) in _NAMES
            and (self._text(at - 1) in (":", "|", "&", "!") or self._word(at - 1) == "IS")
        )

    def _owner_of_node(self, at: int) -> str | None:
        """The parameter of the instance of `(r:Rank {instance: $p})`, or of a group that is reached from `$p`'s."""
        start = at - 2 if self._text(at - 2) == "(" else at - 3
        if self._text(start) != "(" or self._text(at - 1) != ":":
            return None
        if self._text(at + 1) == "{" and (owner := self._value(at + 1, "instance")) is not None:
            return owner
        if self._text(at + 1) not in ("{", ")") and self._word(at + 1) != "WHERE":
            return None
        arrow = (self._text(start - 3), self._text(start - 2), self._text(start - 1))
        if self._name(at) != "group" or arrow != ("]", "-", ">"):
            return None
        return self._owner_of_relationship(start - 4)

    def _owner_of_relationship(self, at: int) -> str | None:
        """The parameter of the instance of `(:Instance {id: $p})-[:HAS_GROUP]->`."""
        start = at - 2 if self._text(at - 2) == "[" else at - 3
        parts = (self._text(start), self._text(at - 1), self._text(at + 1), self._text(at + 2), self._text(at + 3))
        before = (self._text(start - 2), self._text(start - 1))
        if self._name(at) != "has_group" or parts != ("[", ":", "]", "-", ">") or before != (")", "-"):
            return None
        opening = self._starts.get(start - 2)
        if opening is None:
            return None
        if start - 2 - opening == 2:
            return self._declared(self._text(opening + 1))
        return self._instance(opening)

    def _instance(self, opening: int) -> str | None:
        """The parameter of `(i:Instance {id: $p})`."""
        at = opening + (1 if self._text(opening + 1) == ":" else 2)
        if (self._text(at), self._text(at + 1), self._text(at + 2)) != (":", "Instance", "{"):
            return None
        return self._value(at + 2, "id")

    def _declared(self, variable: str) -> str | None:
        """The parameter of the instance that a variable is, if it is the same everywhere."""
        found = set()
        for at in range(len(self._found)):
            if self._text(at) != variable:
                continue
            if self._word(at - 1) in ("AS", "YIELD") or self._word(at + 1) == "IN":
                return None
            if self._text(at - 1) in ("(", "[") and self._text(at + 1) not in (")", "."):
                found.add(self._instance(at - 1))
        return found.pop() if len(found) == 1 else None

    def _value(self, opening: int, key: str) -> str | None:
        """The parameter that a key of a map has as value, itself or as the id of an instance."""
        depth = 0
        for at in range(opening, self._ends.get(opening, opening)):
            depth += (self._text(at) in OPENING) - (self._text(at) in CLOSING)
            if depth != 1 or self._text(at) != key or self._text(at + 1) != ":" or self._text(at - 1) not in ("{", ","):
                continue
            if self._found[at + 2].kind == "parameter":
                return self._text(at + 2)[1:].strip().strip("`") if self._text(at + 3) in (",", "}") else None
            if (self._text(at + 3), self._text(at + 4)) == (".", "id") and self._text(at + 5) in (",", "}"):
                return self._declared(self._text(at + 2))
        return None

    def _is_open(self, at: int) -> bool:
        """Whether a node without label is here that may be any node, or a path of relationships of any type."""
        if self._text(at) == "[" and self._text(at - 1) == "-" and not self._typed(at):
            return "*" in (self._text(at + 1), self._text(at + 2))
        end = self._ends.get(at)
        if self._text(at) != "(" or end is None:
            return False
        inside = at + 1 if self._is_name(at + 1) and self._word(at + 1) != "WHERE" else at
        if self._text(inside + 1) == ":" and end > inside + 1:
            if self._plain_names(inside + 1, end):
                return False
        elif inside + 1 != end and self._text(inside + 1) != "{" and self._word(inside + 1) not in ("WHERE", "IS"):
            return False  # an expression
        is_call = inside + 1 == end and self._is_name(at - 1) and self._word(at - 1).casefold() in _FUNCTIONS
        return not is_call and not self._joined(at, end)

    def _plain_names(self, colon: int, end: int) -> bool:
        """Whether labels are names, with `|`, `&` or `:` between them."""
        at = colon
        while at < end and self._text(at) in (":", "|", "&"):
            step = 2 if self._text(at) == "|" and self._text(at + 1) == ":" else 1
            if not self._is_name(at + step):
                return False
            at += step + 1
        return at == end or self._text(at) in ("{", "]", "*") or self._word(at) == "WHERE"

    def _typed(self, opening: int) -> bool:
        """Whether a relationship has a type, and at least one hop."""
        end = self._ends.get(opening)
        colon = opening + (1 if self._text(opening + 1) == ":" else 2)
        if end is None or self._text(colon) != ":" or not self._plain_names(colon, end):
            return False
        return not any(self._text(at) == "*" and self._text(at + 1).startswith("0") for at in range(opening, end))

    def _joined(self, start: int, end: int) -> bool:
        """Whether a relationship with a type leads to a node, or from it."""
        at = end + 1 + (self._text(end + 1) == "<")
        if self._text(at) == "-" and self._text(at + 1) == "[" and self._typed(at + 1):
            after = self._ends[at + 1] + 1
            after += 1 + (self._text(after + 1) == ">")
            if self._text(after) == "(":
                return True
        at = start - 1 - (self._text(start - 1) == ">")
        return self._text(at) == "-" and self._text(at - 1) == "]" and self._typed(self._starts.get(at - 1, at))


def _brackets(found: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """The places of each bracket's beginning and end."""
    opened: list[int] = []
    for at, token in enumerate(found):
        if token.kind == "symbol" and token.text in OPENING:
            opened.append(at)
        elif token.kind == "symbol" and token.text in CLOSING and opened:
            yield opened.pop(), at


AT_ONCE = 8192
"""Ranks that one transaction creates or lists in groups."""

MOST = 2**20
"""Ranks that a query which names them may cause to be written."""

MOST_UNNAMED = 2**16
"""Ranks that a query over all nodes may cause to be written. Beyond that it is about the nodes that there are."""


NodesWritten = Callable[[int, int], None]
"""Called with how many of the ranks and groups have their nodes, and how many there are."""


def unwatched(done: int, of: int) -> None:
    """Ignore progress: for callers that show none. done: the nodes that are written. of: how many there will be."""


def layout_of(row: Mapping[str, Any]) -> "RankLayout | None":
    """The numbers from which ranks and groups of an instance follow; None if an older stagedb made the instance.

    row: of `workload/instance`. Raises DamagedError, ValueError, KeyError or TypeError for a damaged row: `reading`
    turns these into an error that names the row.
    """
    from stagedb.plans import Plan, RankLayout

    if row["class_table"] is None:
        return None
    layout = RankLayout.stored(Plan.from_mapping(json_mapping(row["plan"], "plan")), row)
    if layout.plan.world != row["world"]:
        raise DamagedError(f"its plan has {layout.plan.world} ranks, and not {row['world']}")
    return layout


def write_reached(store: "Store", text: str, params: Mapping[str, Any], progress: NodesWritten = unwatched) -> int:
    """Write the nodes of ranks and groups that a text can reach and nobody wrote yet.

    A text over all nodes, which does not name ranks or groups, gets those that there are, if there are too many to
    write, or if the store allows no writes.

    progress: counts all instances that the text reaches; those that come later with their ranks alone. Returns the
    number of ranks that the text can reach and that have no nodes. For a text that names ranks or groups, raises
    ReadOnlyError if the store allows no writes, and UsageError if they are too many. params: values of the text's
    parameters, by name.
    """
    reached = instances_reached(text, params)
    if reached is not None:
        for instance in reached:
            write_rank_nodes(store, instance, progress)
        return 0
    rows = store.read_sound("ranks/unwritten")
    ranks: int = sum(row["world"] for row in rows)
    if not names_ranks(text):
        if ranks > MOST_UNNAMED:
            return ranks
        try:
            _write_all(store, rows, progress)
        except ReadOnlyError:
            return ranks
        return 0
    if ranks > MOST:
        raise UsageError(
            f"the query may reach the ranks of {len(rows)} instances, {ranks:,} nodes that nobody wrote yet, more than "
            f"{MOST:,}: ask about one instance, as in (r:Rank {{instance: $instance}}) or "
            "(:Instance {id: $instance})-[:HAS_GROUP]->(g:Group), and give each node a label"
        )
    _write_all(store, rows, progress)
    return 0


def _write_all(store: "Store", rows: Sequence[Mapping[str, Any]], progress: NodesWritten) -> None:
    """Write the nodes of these instances."""
    before, later = 0, sum(row["world"] for row in rows)
    for row in rows:
        later -= row["world"]
        try:
            before += write_rank_nodes(store, row["id"], partial(_part, progress, before, later))
        except DamagedError as damage:
            warn_of(f"ranks left out: {damage}")


def _part(whole: NodesWritten, before: int, later: int, done: int, of: int) -> None:
    """The progress of one instance as a part of all. before: nodes of the instances before it. later: of the rest."""
    whole(before + done, before + of + later)


def write_rank_nodes(store: "Store", instance: str, progress: NodesWritten = unwatched) -> int:
    """Write the nodes of the ranks and groups of an instance, if there are some that nobody wrote.

    Returns how many there are; 0 if an older stagedb made the instance, or if there is none.
    """
    owner, most = new_claim(), AT_ONCE
    while True:
        rows = store.read("ranks/state", instance=instance)
        if not rows:
            return 0  # the instance does not exist or is being deleted, so that the query finds nothing of it either
        with reading(f"instance {instance[:12]} ({shown(rows[0]['name'])})"):
            layout = layout_of(rows[0])
        ranks, groups = rows[0]["ranks_written"], rows[0]["groups_written"]
        if layout is None:
            return 0
        nodes: int = layout.plan.world + layout.group_count
        progress(ranks + groups, nodes)
        if ranks >= layout.plan.world and groups >= layout.group_count:
            return nodes
        try:
            with suppress(_SmallerError):
                _write(store, instance, owner, layout, (ranks, groups), most)
                continue
        except ReadOnlyError as error:
            raise ReadOnlyError(
                f"the query asks for ranks or groups of instance {instance[:12]} ({shown(rows[0]['name'])}), whose "
                "nodes nobody wrote yet, and this connection only reads: run the query once with an account that may "
                f"write, on a server that allows it ({error})"
            ) from None
        most //= 2


class _SmallerError(Exception):
    """A transaction needed too much memory: fewer nodes at once may fit."""


def _write(
    store: "Store", instance: str, owner: str, layout: "RankLayout", written: tuple[int, int], most: int
) -> None:
    """Write the next nodes: ranks, then groups."""
    ranks, groups = written
    common = {"instance": instance, "owner": owner}
    try:
        if ranks < layout.plan.world:
            store.write(
                "ranks/write_ranks",
                **common,
                first=ranks,
                last=min(ranks + most, layout.plan.world) - 1,
                axes=layout.axes(),
                groups=layout.group_axes(),
                classes={
                    "numbers": list(layout.classes),
                    "cp": layout.along_cp,
                    "ep": layout.along_ep,
                    "dp": layout.along_dp,
                },
            )
        else:
            rows = layout.group_rows(groups, most)
            count = sum(row["last_index"] + 1 - row["first_index"] for row in rows)
            store.write("ranks/write_groups", **common, first=groups, count=count, rows=rows)
    except OutOfMemory as error:
        if most == 1:
            raise
        raise _SmallerError from error
