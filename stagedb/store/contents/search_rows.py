"""Candidates of searches as properties of nodes, and back.

A candidate has only the words that its search chose, each as a property; terms are properties, too.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from stagedb.files import shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.search import Candidate, Fate, Objective, SearchRequest, Shards
from stagedb.store.contents.comparisons import without_none
from stagedb.store.search_labels import CHOSEN_WORDS, TERMS

FORMAT = 2
"""Version of the contents of a search."""

Row = Mapping[str, Any]

_ORDER = (
    *("recipe", "tp", "pp", "cp", "dp", "cp_kind", "ulysses", "expert_tp", "ep", "dispatch", "node_ranks"),
    *(
        "micro_batch_size",
        "sp",
        "strategy",
        "zero",
        "hsdp",
        "recompute",
        "scatter_gather",
        "rank_order",
        "counted_ends",
    ),
    *("schedule", "virtual_stages", "layers_per_chunk", "overlap_experts", "recompute_every", "recompute_first"),
)
"""Words in the order in which a search chooses them; stores keep no order of properties."""

_WORDS = (*_ORDER, *(row.name for row in CHOSEN_WORDS if row.name not in _ORDER))
_TERM_OF = {name: term for term, name in TERMS.items()}

_OWN = ("fate", "system", "ranks", "plans", "step", "peak", "sent", "code", "why")
"""Fields of a candidate that are properties of the same name."""


def request_text(request: SearchRequest) -> str:
    """All that a search asks, as JSON. Words keep their order, in which commands have them."""
    return json.dumps(asdict(request), separators=(",", ":"))


def request_of(text: str) -> SearchRequest:
    """The request of `request_text`. Raises DamagedError, ValueError or TypeError for another text."""
    found = json_mapping(text, "request")
    known = {field.name for field in fields(SearchRequest)}
    if found.keys() != known:
        other = ", ".join(map(shown, sorted(found.keys() ^ known)))
        raise DamagedError(f"request has other fields than those of a search: {other}")
    lists = {name: tuple(found[name]) for name in ("systems", "digests", "ranks", "allow")}
    return SearchRequest(**{**found, **lists, "by": Objective(found["by"])})


def request_properties(request: SearchRequest) -> dict[str, Any]:
    """What a search asks as properties of its node."""
    return without_none(
        {
            "model": request.model,
            "systems": list(request.systems),
            "ranks": list(request.ranks),
            "seq_len": request.words.get("seq_len"),
            "global_batch_size": request.words.get("global_batch_size"),
            "by": request.by.value,
            "allow": list(request.allow),
            "room": request.room,
            "condition": request.where or None,
            "top": request.top,
            "request": request_text(request),
            "format": FORMAT,
        }
    )


def shard_id(request: SearchRequest, shard: Shards) -> str:
    """The id of one shard of a search, the same on all machines."""
    content = json.dumps({"search": request.id, "shard": shard.numbers, "of": shard.of})
    return hashlib.sha256(content.encode()).hexdigest()[:20]


def shard_properties(request: SearchRequest, shard: Shards) -> dict[str, Any]:
    """What one shard of a search is asked, as properties of its node."""
    return {**request_properties(request), "whole": request.id, "shard": shard.numbers[0], "shards": shard.of}


def limits_of(request: SearchRequest, timed: Iterable[Candidate]) -> dict[str, Any]:
    """What the best plans on each number of ranks have of what the search makes small, as properties of a shard.

    At most one value of each layout, ascending; with their numbers of ranks if there are several. timed: the plans that
    were timed.
    """
    best: dict[tuple[int, str], float] = {}
    for each in timed:
        key, value = (each.ranks, each.layout), float(request.worth_of(each)[0])
        best[key] = min(value, best.get(key, value))
    rows = [
        (value, ranks)
        for ranks in request.ranks
        for value in sorted(value for (own, _), value in best.items() if own == ranks)[: request.top]
    ]
    found: dict[str, Any] = {"limits": [value for value, _ in rows]}
    return {**found, "limit_ranks": [ranks for _, ranks in rows]} if len(request.ranks) > 1 else found


def chosen_words(request: SearchRequest, words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan that its search chose."""
    own = request.words
    return {name: value for name, value in words.items() if name not in own or value != own[name]}


def candidate_values(request: SearchRequest, each: Candidate) -> dict[str, Any]:
    """The properties of a candidate, without its id and its place."""
    chosen = chosen_words(request, each.words)
    own = {name: getattr(each, name) for name in _OWN}
    return {
        **{name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()},
        **{TERMS[term]: ns for term, ns in each.terms.items()},
        **{
            name: value.value if isinstance(value, Fate) else value
            for name, value in own.items()
            if value not in ("", None)
        },
    }


def candidate_of(request: SearchRequest, values: Row) -> Candidate:
    """The candidate that a node with these properties represents."""
    chosen = {name: values[name] for name in _WORDS if values.get(name) is not None}
    return Candidate(
        words={**request.words, **chosen},
        system=values["system"],
        ranks=values["ranks"],
        fate=Fate(values["fate"]),
        step=values["step"],
        peak=values["peak"],
        plans=values["plans"],
        sent=values.get("sent"),
        terms={term: values[name] for name, term in _TERM_OF.items() if values.get(name) is not None},
        code=values.get("code", ""),
        why=values.get("why", ""),
    )


def with_ids(search: str, request: SearchRequest, candidates: Iterable[Candidate]) -> list[tuple[str, Candidate]]:
    """Candidates with their ids, which are the same for the same plans whenever they are found.

    Two sets that a search ruled out may share their words; a number makes their ids distinct, in the order of the
    candidates.
    """
    seen = Counter[str]()
    found = []
    for each in candidates:
        content = [each.system, each.ranks, each.plans > 1, sorted(chosen_words(request, each.words).items())]
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]
        seen[key] += 1
        found.append((f"{search}/{key}" + (f".{seen[key]}" if seen[key] > 1 else ""), each))
    return found


def content_digest(rows: Iterable[Row]) -> str:
    """sha256 of the properties of candidates, in any order. Which instances there are does not count.

    rows: the properties of each candidate.
    """
    lines = sorted(
        json.dumps({name: value for name, value in row.items() if name != "instance"}, sort_keys=True) for row in rows
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def search_problems(own: Row, candidates: Iterable[Row]) -> Iterator[str]:
    """What is wrong with a search, by its own digest and request. own: its properties. candidates: theirs."""
    request = request_of(own["request"])
    rows = list(candidates)
    yield from _shard_problems(request, own, rows)
    for name, value in request_properties(request).items():
        if own.get(name) != value:
            yield f"{name} of it is {shown(own.get(name))} and must be {shown(value)}"
    if content_digest(rows) != own["content"]:
        yield "its content does not match its digest"
    timed = sum(1 for row in rows if row["fate"] == Fate.TIMED)
    if timed != own["timed"]:
        yield f"it counts {own['timed']} timed plans and has {timed}"
    best = next((row for row in rows if row["place"] == 0 and row["fate"] == Fate.TIMED), {})
    for name in ("step", "peak"):
        if own.get(name) != best.get(name):
            yield f"{name} of it is {shown(own.get(name))} and that of its best plan {shown(best.get(name))}"


def _shard_problems(request: SearchRequest, own: Row, rows: Iterable[Row]) -> Iterator[str]:
    """What is wrong with the id of a search, and with what it has of shards."""
    number, of, finished = own.get("shard"), own.get("shards"), own.get("finished")
    if number is None and own.get("whole") is None:
        if own["id"] not in request.ids:
            yield f"its request gives the id {request.id}"
        if finished is not None and own["covered"] and finished != list(range(1, (of or 0) + 1)):
            yield f"it is covered, and of its {of} shards those that are finished are {finished}"
        return
    if number is None or of is None or own.get("whole") != request.id:
        yield f"it is no shard of search {request.id}, which its request gives"
    elif shard_id(request, Shards((number,), of)) != own["id"]:
        yield f"as shard {number}/{of} of search {request.id} it has another id"
    timed = (candidate_of(request, row) for row in rows if row["fate"] == Fate.TIMED)
    limits = {"limits": own.get("limits"), "limit_ranks": own.get("limit_ranks")}
    if without_none(limits) != limits_of(request, timed):
        yield "its limits are not those of its plans"
