"""What lists and look-ups read of graphs, instances, profiles, searches and runs: columns of each label, written once.

Lists have names as `catalog/graphs`. Look-ups have names as `lookup/graph`, by a word that a user gives, and as
`lookup/instances_of`, by what things are made from; they also read what users wrote about the few that they find.
The fastest profiles have names as `team/find_of_model`, by where the search for them begins.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from stagedb.store.lifecycle_statements import words_of
from stagedb.store.schema import LABELS, NAMED, OWNERS, parent_of


@dataclass(frozen=True)
class _Shown:
    """A column. header: its line there, from the name on. value: its Cypher, of a node `n` made from `of`."""

    header: str
    value: str

    @property
    def text(self) -> str:
        """The column in RETURN."""
        name = self.header.partition(":")[0]
        return name if name == self.value else f"{self.value} AS {name}"


@dataclass(frozen=True)
class _Step:
    """A part of a statement that finds what is joined to each node. values: by name, the Cypher that sums it up."""

    match: str
    values: Mapping[str, str]


_MODEL = _Shown("model: string — name of the model", "of.name")
_RECIPE = _Shown("recipe: string — the framework that the graph follows", "of.recipe")
_RANKS = _Shown("ranks: integer — size of the world", "n.world")
_CLASSES = _Shown("classes: integer — number of rank classes", "classes")
_INSTANCE_NAME = _Shown("instance_name: string — what that instance is called where nobody names it", "of.name")
_INSTANCE_NAMES = _Shown("instance_names: string[] — names of that instance, as space/name", "instance_names")
_BLOCKING = _Shown("blocking: string[] — mesh axes whose communication a rank waits for", "coalesce(n.blocking, [])")

_DESCRIBED: Mapping[str, Sequence[str | _Shown]] = {
    "Graph": ("id", "name", "recipe", "options", "sizes", "created", "builder"),
    "Instance": (
        *("id", "name", "graph", _MODEL, _RECIPE, "plan", _RANKS, _CLASSES),
        *("created", "builder", "claim"),
    ),
    "Profile": (
        *("id", "name", "instance", _INSTANCE_NAME, "system", "scalings", _BLOCKING, _RANKS, "step", "unscaled"),
        *("tokens_per_second", "mfu", "hfu", "memory", "room", "measured_time", "created", "builder", "claim"),
    ),
    "Search": (
        *("id", "model", "request", "size", "timed", "covered", "step", "peak", "left", "seconds"),
        *("shard", "shards", "finished", "whole", "created", "builder"),
    ),
    "Run": (
        *("id", "name", "tool", "world", "job_ranks", "step", "steps", "ops", "devices", "busy", "exposed"),
        *("unexplained", "launching", "left_out", "created", "builder", "claim"),
    ),
}
"""By label what describes a node in a list: names of its properties, which the schema explains, and other columns."""

_NEWEST: Mapping[str, Sequence[str | _Shown]] = {
    "Instance": ("id", "name", _RANKS),
    "Profile": ("id", "name", _INSTANCE_NAME, "system", _RANKS),
}
"""By label what describes a node in a line, next to its names."""

_FOUND: Sequence[str | _Shown] = (
    *("id", "name", "instance", _INSTANCE_NAME),
    _Shown("model: string — name of the model", "g.name"),
    _Shown("plan: string — the plan's words, as JSON", "of.plan"),
    *(_RANKS, "system", "step", "tokens_per_second"),
    _Shown(
        "tokens_per_accelerator: float? [tokens/s] — of one rank, on average",
        "tokens_per_accelerator",
    ),
    *("mfu", "memory", "room", "measured_time", "created", "builder"),
)
"""What describes a profile among the fastest ones."""

_PARENT = {"Instance": "of:Graph", "Profile": "of:Instance {state: 'ready'}"}
"""The node that one is made from. No graph goes before its instances; profiles go after theirs, which is not ready."""

_COUNT_CLASSES = _Step("MATCH (n)-[:HAS_CLASS]->(k:RankClass)", {"classes": "count(k)"})
_PARENT_NAMES = _Step("OPTIONAL MATCH (l:Name)-[:NAMES]->(of)", {"instance_names": "collect(l.space + '/' + l.name)"})
_NAMES = _Step("OPTIONAL MATCH (a:Name)-[:NAMES]->(n)", {"names": "collect(a.space + '/' + a.name)"})

_MARK_COLUMNS = (
    _Shown("tags: string[] — its tags", "tags"),
    _Shown("notes: string[] — texts of the notes about it", "notes"),
    _Shown("loaded: string[] — which of these came with a dump, and from where", "loaded_tags + loaded_notes"),
)
_NAMES_COLUMN = _Shown("names: string[] — its names, as space/name", "names")
_NAMED_COLUMNS = (
    _NAMES_COLUMN,
    *_MARK_COLUMNS[:2],
    _Shown("asked: integer? [ms] — when the user asked for it, since 1970 (UTC)", "asked"),
    _Shown(
        "loaded: string[] — which names, tags and notes came with a dump, and from where",
        "loaded_names + loaded_tags + loaded_notes",
    ),
)
_GRAPH_COLUMNS = (
    _Shown("graph_options: string — its graph's options, as JSON", "of.options"),
    _Shown("graph_sizes: string — the model's symbols and their values, as JSON", "of.sizes"),
    _Shown("graph_created: integer [ms] — when its graph was made, since 1970 (UTC)", "of.created"),
    _Shown("graph_builder: string? — the process that made its graph", "of.builder"),
    _Shown("graph_tags: string[] — tags of its graph", "graph_tags"),
    _Shown("graph_notes: string[] — texts of the notes about its graph", "graph_notes"),
    _Shown(
        "graph_loaded: string[] — which of these came with a dump, and from where",
        "graph_loaded_tags + graph_loaded_notes",
    ),
)
"""What a look-up of an instance has of its graph."""


def catalog() -> Iterator[tuple[str, str]]:
    """The statements of lists: the last part of each name, and its text."""
    for owner in OWNERS:
        many = words_of(owner)["plural"]
        whose = " of complete instances" if owner == "Profile" else ""
        counts = (_COUNT_CLASSES,) if _CLASSES in _DESCRIBED[owner] else ()
        start = f"MATCH (n:{owner} {{state: 'ready'}})" + (f"-[:OF]->({_PARENT[owner]})" if parent_of(owner) else "")
        about = f"All complete {many}{whose}, the newest first."
        yield many, _statement(about, (), _body(owner, start, counts), _columns(owner, _DESCRIBED[owner]))
        if owner in _NEWEST:
            about = f"The newest complete {many}{whose}, with what describes them in a line."
            start += "\nWITH n, of ORDER BY n.created DESC, n.id LIMIT $most"
            above, columns = _above(owner)
            text = _body(owner, start, (*above, _NAMES))
            columns = (*_columns(owner, _NEWEST[owner]), *columns, _NAMES_COLUMN)
            most = ("most: integer — how many, at most",)
            yield f"newest_{many}", _statement(about, most, text, columns, order="n.created")


def lookup() -> Iterator[tuple[str, str]]:
    """The statements of look-ups: the last part of each name, and its text."""
    for owner in OWNERS:
        many, parent, named = words_of(owner)["plural"], parent_of(owner), owner in NAMED
        user = ("user: string — the user who asks",) if named else ()
        above, columns = _above(owner)
        steps = (*above, *(_named_marks() if named else _marks("n")))
        if _CLASSES in _DESCRIBED[owner]:
            steps = (_COUNT_CLASSES, *steps)
        columns = (*_columns(owner, _DESCRIBED[owner]), *columns, *(_NAMED_COLUMNS if named else _MARK_COLUMNS))
        if parent is not None:
            low = parent.lower()
            start = f"MATCH ({_with_id(_PARENT[owner], low)})<-[:OF]-(n:{owner} {{state: 'ready'}})"
            about = f"All complete {many} of a complete {low}, the newest first."
            params = (f"{low}: string — the {low}'s id", *user)
            yield f"{many}_of", _statement(about, params, _body(owner, start, steps), columns)
        about = f"The complete {many} that a word may mean{', each with its graph' if parent == 'Graph' else ''}: "
        if parent == "Graph":
            steps, columns = (*steps, *_marks("of", "graph_")), (*columns, *_GRAPH_COLUMNS)
        start = _MEANT.format(
            label=owner,
            low=owner.lower(),
            called=_CALLED.format(label=owner) if _has_name(owner) else "",
            named=_NAMED.format(label=owner, low=owner.lower()) if named else "",
            found="begun" + (" + called" if _has_name(owner) else "") + (" + named + meant" if named else ""),
            parent=f"MATCH (n)-[:OF]->({_PARENT[owner]})\n" if parent else "",
        )
        word = ("word: string — the word", *user)
        yield owner.lower(), _statement(about + _ways(owner), word, _body(owner, start, steps), columns)


def finding() -> Iterator[tuple[str, str]]:
    """The statements that find the fastest profiles: the last part of each name, and its text."""
    columns = _columns("Profile", _FOUND)
    for stem, (whose, own, start) in _FIND_STARTS.items():
        params = (*own, *_FIND_PARAMS)
        about = f"Profiles {whose}under plans with the given words, the most tokens a second an accelerator\n// first."
        yield stem, _FIND.format(about=about, start=start, **_lists(params, columns))


def _has_name(owner: str) -> bool:
    return "name" in _properties(owner)


def _ways(owner: str) -> str:
    """How a word means a node, as the end of a sentence."""
    if owner in NAMED:
        return "by the start of their ids,\n// by anybody's name, and by what they are called without one."
    return "by the start of their ids" + (", and by the name of their model." if _has_name(owner) else ".")


def _above(owner: str) -> tuple[tuple[_Step, ...], tuple[_Shown, ...]]:
    """What finds the names of what a node is made from, and the column that has them; nothing if that has no names."""
    return ((_PARENT_NAMES,), (_INSTANCE_NAMES,)) if parent_of(owner) in NAMED else ((), ())


def _marks(node: str, before: str = "") -> tuple[_Step, ...]:
    """What finds tags and notes. node: the variable that has them. before: how the names of the values begin.

    `loaded_…` has those that came with a dump: `+` with an origin that is null is null, which `collect` leaves out.
    """
    tags = {"tags": "collect(t.id)", "loaded_tags": "collect('tag ' + t.id + ' ' + r.origin)"}
    notes = {
        "notes": "collect(m.text)",
        "loaded_notes": "collect('note ' + substring(m.text, 0, 40) + ' ' + m.origin)",
    }
    return (
        _Step(f"OPTIONAL MATCH (t:Tag)-[r:TAGS]->({node})", {before + name: text for name, text in tags.items()}),
        _Step(f"OPTIONAL MATCH (m:Note)-[:ABOUT]->({node})", {before + name: text for name, text in notes.items()}),
    )


def _named_marks() -> tuple[_Step, ...]:
    """What finds names, tags and notes, and when the user asked for it."""
    loaded = {"loaded_names": "collect('name ' + a.space + '/' + a.name + ' ' + a.origin)"}
    asked = _Step("OPTIONAL MATCH (:User {id: $user})-[s:ASKED_FOR]->(n)", {"asked": "max(s.time)"})
    return (_Step(_NAMES.match, {**_NAMES.values, **loaded}), *_marks("n"), asked)


def _with_id(node: str, param: str) -> str:
    """The pattern of a node, found by its id. param: the parameter that has the id."""
    return node.replace("{", f"{{id: ${param}, ") if "{" in node else f"{node} {{id: ${param}}}"


def _properties(owner: str) -> dict[str, _Shown]:
    """The columns that are properties of a label, by their names."""
    (label,) = (label for label in LABELS if label.name == owner)
    return {
        row.name: _Shown(
            f"{row.name}: {row.type}{f' [{row.unit}]' if row.unit else ''} — {row.description}", f"n.{row.name}"
        )
        for row in label.properties
    }


def _columns(owner: str, shown: Iterable[str | _Shown]) -> tuple[_Shown, ...]:
    properties = _properties(owner)
    return tuple(properties[each] if isinstance(each, str) else each for each in shown)


def _body(owner: str, start: str, steps: Iterable[_Step]) -> str:
    """The text up to RETURN: each step keeps what those before it found."""
    kept, lines = ["n", *(["of"] if parent_of(owner) else [])], [start]
    for step in steps:
        found = ",\n  ".join(f"{text} AS {name}" for name, text in step.values.items())
        lines += [step.match, f"WITH {', '.join(kept)},\n  {found}"]
        kept += step.values
    return "\n".join(lines)


def _statement(
    about: str, params: Iterable[str], body: str, columns: Iterable[_Shown], *, order: str = "created"
) -> str:
    """A whole statement. body: its text up to RETURN. order: what it is ordered by, the largest first."""
    return _LISTING.format(about=about, body=body, order=order, **_lists(params, columns))


def _lists(params: Iterable[str], columns: Iterable[_Shown]) -> dict[str, str]:
    """The parts of a statement that list parameters and columns; lines are broken between columns only."""
    returned = ", ".join(each.text.replace(" ", _INSIDE) for each in columns)
    return {
        "params": "".join(f"// param {each}\n" for each in params),
        "columns": "".join(f"// column {each.header}\n" for each in columns),
        "returned": fill(f"RETURN {returned}", 120, subsequent_indent="  ").replace(_INSIDE, " "),
    }


_INSIDE = "\N{NO-BREAK SPACE}"

_LISTING = """\
// {about}
//
// mode: reads
{params}{columns}{body}
{returned}
ORDER BY {order} DESC, id
"""

_MEANT = """\
MATCH (a:{label})
WHERE size($word) >= 4 AND a.id STARTS WITH $word
WITH collect(a) AS begun
{called}{named}UNWIND {found} AS found
WITH DISTINCT found AS n
{parent}WHERE n.state = 'ready'"""

_CALLED = """\
OPTIONAL MATCH (b:{label} {{name: $word}})
WITH begun, collect(b) AS called
"""

_NAMED = """\
OPTIONAL MATCH (:Name {{name: $word}})-[:NAMES]->(c:{label})
WITH begun, called, collect(c) AS named
OPTIONAL MATCH (:Name {{id: '{low}:' + $word}})-[:NAMES]->(d:{label})
WITH begun, called, named, collect(d) AS meant
"""

_FIND_PARAMS = (
    "words: map — words of the plan and their values, as properties of `Instance`",
    "fits: boolean — whether only those are wanted that fit into the accelerator's memory",
    "limit: integer — how many profiles",
)

_FIND_STARTS = {
    "find_of_model": (
        "of a model ",
        ("model: string — the model's name", "system: string? — the system's name; null: any"),
        """\
MATCH (g:Graph {name: $model})<-[:OF]-(of:Instance {state: 'ready'})<-[:OF]-(n:Profile {state: 'ready'})
WHERE ($system IS NULL OR n.system = $system) AND size(n.scalings) = 0
  AND all(word IN keys($words) WHERE of[word] = $words[word])
  AND (NOT $fits OR n.memory <= n.room OR n.memory IS NOT NULL AND n.room IS NULL)""",
    ),
    "find_on_system": (
        "on a system ",
        ("system: string — the system's name",),
        """\
MATCH (n:Profile {system: $system, state: 'ready'})
WHERE size(n.scalings) = 0 AND (NOT $fits OR n.memory <= n.room OR n.memory IS NOT NULL AND n.room IS NULL)
// So that a server begins here, at the index: it would take the plans' words for rarer than the system.
WITH n
MATCH (n)-[:OF]->(of:Instance {state: 'ready'})-[:OF]->(g:Graph)
WHERE all(word IN keys($words) WHERE of[word] = $words[word])""",
    ),
    "find_under_plan": (
        "",
        (),
        """\
MATCH (n:Profile {state: 'ready'})-[:OF]->(of:Instance {state: 'ready'})-[:OF]->(g:Graph)
WHERE size(n.scalings) = 0
  AND all(word IN keys($words) WHERE of[word] = $words[word])
  AND (NOT $fits OR n.memory <= n.room OR n.memory IS NOT NULL AND n.room IS NULL)""",
    ),
}
"""By name: whose profiles, further parameters, and the text up to the profiles. The label that it begins at differs."""

_FIND = """\
// {about} Those with scaled durations are left out.
//
// mode: reads
{params}{columns}{start}
WITH g, of, n, n.tokens_per_second / of.world AS tokens_per_accelerator
ORDER BY coalesce(tokens_per_accelerator, 0.0) DESC, n.step, n.id LIMIT $limit
{returned}
ORDER BY coalesce(tokens_per_accelerator, 0.0) DESC, step, id
"""
