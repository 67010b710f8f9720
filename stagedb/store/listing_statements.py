"""What lists and look-ups read of graphs, instances, profiles, searches and runs: columns of each label, written once.

Lists have names as `catalog/graphs`. Look-ups have names as `lookup/graph`, by a word that a user gives, and as
`lookup/instances_of`, by what things are made from; they also read what users wrote about the few that they find.
The fastest profiles have names as `team/find_of_model`, by where the search for them begins.

Most commands read some of these, and few need the schema, whose words come from all models and plans: nothing here
imports it.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

from stagedb.store.schema_forms import words_of
from stagedb.store.team_labels import NAMED_LABELS


@dataclass(frozen=True)
class _Shown:
    """A column. header: its line there, from the name on. value: its Cypher, of a node `n` made from `of`."""

    header: str
    value: str

    @property
    def name(self) -> str:
        return self.header.partition(":")[0]

    @property
    def text(self) -> str:
        """The column in RETURN."""
        return self.name if self.name == self.value else f"{self.value} AS {self.name}"


@dataclass(frozen=True)
class _Step:
    """A part of a statement that finds what is joined to each node. values: by name, the Cypher that sums it up."""

    match: str
    values: Mapping[str, str]


def _shown(headers: str, **values: str) -> tuple[_Shown, ...]:
    """Columns of a node. headers: a line for each. values: by name, the Cypher of those that are no property of it."""
    made = (_Shown(line.strip(), "") for line in headers.strip().splitlines())
    return tuple(_Shown(each.header, values.get(each.name, f"n.{each.name}")) for each in made)


_DESCRIBED: Mapping[str, Sequence[_Shown]] = {
    "Graph": _shown(
        """
        id: string — digest of the model, the options and the format
        name: string — the model's name
        recipe: string — the framework that the graph follows
        options: string — the graph's options, as JSON
        sizes: string — the model's symbols and their values, as JSON
        created: integer [ms] — when it was made, since 1970 (UTC)
        builder: string? — the process that made it
        """
    ),
    "Instance": _shown(
        """
        id: string — digest of the graph and the plan
        name: string — what it is called where nobody names it
        graph: string — id of its graph
        model: string — name of the model
        recipe: string — the framework that the graph follows
        plan: string — the plan's words, as JSON
        ranks: integer — size of the world
        classes: integer — number of rank classes
        created: integer [ms] — when it was made, since 1970 (UTC)
        builder: string? — the process that made it
        claim: string? — the process that last asked for it
        """,
        model="of.name",
        recipe="of.recipe",
        ranks="n.world",
        classes="classes",
    ),
    "Profile": _shown(
        """
        id: string — digest of the instance's id, the system, measured durations, scalings and blocking axes
        name: string? — what it is called where nobody names it
        instance: string — id of its instance
        instance_name: string — what that instance is called where nobody names it
        system: string — the system's name
        scalings: string[] — durations that were scaled
        blocking: string[] — mesh axes whose communication a rank waits for
        ranks: integer — size of the world
        step: integer [ns] — length of the step
        unscaled: integer [ns] — length of the step without the scalings
        tokens_per_second: float? [tokens/s] — of all ranks
        mfu: float? [ratio] — model FLOPs over what the peaks would do in the step
        hfu: float? [ratio] — hardware FLOPs over the same, with recomputing
        memory: integer? [B] — what its fullest rank holds at its peak; null if an older stagedb made it
        room: integer? [B] — memory of one accelerator for tensors; null if it has no bound
        measured_time: float [ratio] — share of the modelled time that was measured
        created: integer [ms] — when it was made, since 1970 (UTC)
        builder: string? — the process that made it
        claim: string? — the process that last asked for it
        """,
        instance_name="of.name",
        blocking="coalesce(n.blocking, [])",
        ranks="n.world",
    ),
    "Search": _shown(
        """
        id: string — digest of what was asked
        model: string — the model's name
        request: string — all that was asked, as JSON
        size: integer — plans whose degrees divide
        timed: integer — plans that were timed
        covered: boolean — every plan was tried or ruled out by a bound
        step: integer? [ns] — step of the best plan; null if none that fits was found
        peak: integer? [B] — what the fullest rank of the best plan holds
        left: integer? [ns] — no plan that was not tried has a shorter step; null if all were
        seconds: float [s] — time of the search
        shard: integer? — of a shard of a search: its number, from 1
        shards: integer? — how many shards the search is cut into
        finished: integer[]? — of a search that was merged from shards: those that are finished
        whole: string? — of a shard: id of the search
        created: integer [ms] — when it was made, since 1970 (UTC)
        builder: string? — the process that made it
        """
    ),
    "Run": _shown(
        """
        id: string — digest of its files
        name: string? — what it is called where nobody names it
        tool: string — what recorded it
        world: integer [ranks] — ranks that were imported
        job_ranks: integer [ranks] — ranks of the job
        step: integer? [ns] — time from its first op to the end of its last one; null: no times
        steps: integer — steps that the profiler counted; 0: it counted none
        ops: integer — ops of all imported ranks
        devices: string[] — names of the accelerators
        busy: integer? [ns] — computing or copying, mean of the ranks; null: no times
        exposed: integer? [ns] — communicating and nothing else, mean of the ranks; null: no times
        unexplained: integer? [ns] — of the critical path: idle, though the launch is there; null: no times
        launching: integer? [ns] — of the critical path: idle until a launch; null: no times
        left_out: string[] — what of the files was not understood
        created: integer [ms] — when it was imported, since 1970 (UTC)
        builder: string? — the process that imported it
        claim: string? — the process that last asked for it
        """
    ),
}
"""By label what describes a node in a list: lines of a header. A value is the property of that name, or as given."""

_NEWEST: Mapping[str, Sequence[str]] = {
    "Instance": ("id", "name", "ranks"),
    "Profile": ("id", "name", "instance_name", "system", "ranks"),
}
"""By label which of these describe a node in a line, next to its names."""

_PARENTS = {"Instance": "Graph", "Profile": "Instance"}
"""By label what a node is made from."""

_INSTANCE_NAMES = _Shown("instance_names: string[] — names of that instance, as space/name", "instance_names")

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


@functools.cache
def listing_statements() -> Mapping[str, str]:
    """By name, such as `catalog/graphs`, the text with its header."""
    folders = {"catalog": _catalog, "lookup": _lookup, "team": _finding}
    return {f"{folder}/{stem}": text for folder, made in folders.items() for stem, text in made()}


def _catalog() -> Iterator[tuple[str, str]]:
    """The statements of lists."""
    for owner, columns in _DESCRIBED.items():
        many = words_of(owner)["plural"]
        whose = " of complete instances" if owner == "Profile" else ""
        start = f"MATCH (n:{owner} {{state: 'ready'}})" + (f"-[:OF]->({_parent(owner)})" if owner in _PARENTS else "")
        about = f"All complete {many}{whose}, the newest first."
        yield many, _statement(about, (), _body(owner, start, _counts(owner)), columns)
        if owner in _NEWEST:
            about = f"The newest complete {many}{whose}, with what describes them in a line."
            start += "\nWITH n, of ORDER BY n.created DESC, n.id LIMIT $most"
            above, names = _above(owner)
            text = _body(owner, start, (*above, _NAMES))
            shown = (*_picked(owner, _NEWEST[owner]), *names, _NAMES_COLUMN)
            most = ("most: integer — how many, at most",)
            yield f"newest_{many}", _statement(about, most, text, shown, order="n.created")


def _lookup() -> Iterator[tuple[str, str]]:
    """The statements of look-ups."""
    for owner in _DESCRIBED:
        many, parent, named = words_of(owner)["plural"], _PARENTS.get(owner), owner in NAMED_LABELS
        user = ("user: string — the user who asks",) if named else ()
        above, names = _above(owner)
        steps = (*_counts(owner), *above, *(_named_marks() if named else _marks("n")))
        columns = (*_DESCRIBED[owner], *names, *(_NAMED_COLUMNS if named else _MARK_COLUMNS))
        if parent is not None:
            low = parent.lower()
            start = f"MATCH ({_parent(owner, f'id: ${low}')})<-[:OF]-(n:{owner} {{state: 'ready'}})"
            about = f"All complete {many} of a complete {low}, the newest first."
            params = (f"{low}: string — the {low}'s id", *user)
            yield f"{many}_of", _statement(about, params, _body(owner, start, steps), columns)
        about = f"The complete {many} that a word may mean{', each with its graph' if parent == 'Graph' else ''}: "
        if parent == "Graph":
            steps, columns = (*steps, *_marks("of", "graph_")), (*columns, *_GRAPH_COLUMNS)
        start = _MEANT.format(
            label=owner,
            called=_CALLED.format(label=owner) if _has_name(owner) else "",
            named=_NAMED.format(label=owner, low=owner.lower()) if named else "",
            found="begun" + (" + called" if _has_name(owner) else "") + (" + named + meant" if named else ""),
            parent=f"MATCH (n)-[:OF]->({_parent(owner)})\n" if parent else "",
        )
        word = ("word: string — the word", *user)
        yield owner.lower(), _statement(about + _ways(owner), word, _body(owner, start, steps), columns)


def _finding() -> Iterator[tuple[str, str]]:
    """The statements that find the fastest profiles."""
    columns = (
        *_picked("Profile", ("id", "name", "instance", "instance_name")),
        _Shown("model: string — name of the model", "g.name"),
        _Shown("plan: string — the plan's words, as JSON", "of.plan"),
        *_picked("Profile", ("ranks", "system", "step", "tokens_per_second")),
        _Shown("tokens_per_accelerator: float? [tokens/s] — of one rank, on average", "tokens_per_accelerator"),
        *_picked("Profile", ("mfu", "memory", "room", "measured_time", "created", "builder")),
    )
    for stem, (whose, own, start) in _FIND_STARTS.items():
        about = f"Profiles {whose}under plans with the given words, the most tokens a second an accelerator\n// first."
        yield stem, _FIND.format(about=about, start=start, **_lists((*own, *_FIND_PARAMS), columns))


def _picked(owner: str, names: Iterable[str]) -> tuple[_Shown, ...]:
    """Some of the columns that describe a node, by their names."""
    known = {each.name: each for each in _DESCRIBED[owner]}
    return tuple(known[name] for name in names)


def _counts(owner: str) -> tuple[_Step, ...]:
    return (_COUNT_CLASSES,) if owner == "Instance" else ()


def _parent(owner: str, found: str = "") -> str:
    """The node that one is made from. found: the property that it is found by.

    No graph goes before its instances, and profiles go after theirs, which is not ready then.
    """
    parts = [found] * bool(found) + ["state: 'ready'"] * (owner == "Profile")
    return f"of:{_PARENTS[owner]}" + (f" {{{', '.join(parts)}}}" if parts else "")


def _has_name(owner: str) -> bool:
    return any(each.name == "name" for each in _DESCRIBED[owner])


def _ways(owner: str) -> str:
    """How a word means a node, as the end of a sentence."""
    if owner in NAMED_LABELS:
        return "by the start of their ids,\n// by anybody's name, and by what they are called without one."
    return "by the start of their ids" + (", and by the name of their model." if _has_name(owner) else ".")


def _above(owner: str) -> tuple[tuple[_Step, ...], tuple[_Shown, ...]]:
    """What finds the names of what a node is made from, and the column that has them; nothing if that has no names."""
    return ((_PARENT_NAMES,), (_INSTANCE_NAMES,)) if _PARENTS.get(owner) in NAMED_LABELS else ((), ())


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


def _body(owner: str, start: str, steps: Iterable[_Step]) -> str:
    """The text up to RETURN: each step keeps what those before it found."""
    kept, lines = ["n", *(["of"] if owner in _PARENTS else [])], [start]
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
