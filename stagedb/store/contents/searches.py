"""Searches in the store: what was asked, what came out, and every candidate as a node.

A search is written under a lease, and readers see it when it is complete. Plans that were timed are written as they are
found, so that a search that was stopped goes on with them: nothing else of it takes long. The same request has the same
id, so that of two searches at once the second one waits for the result of the first.
"""

import hashlib
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.mentions import Word, call
from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult, Shards
from stagedb.store import Input, Lease, Store, building, delete, read_whole, reading
from stagedb.store.contents.proofs import without_none
from stagedb.store.events import dead_owner, new_claim
from stagedb.store.plan_labels import CHOSEN_WORDS, TERMS

# Candidates of searches as properties of nodes, and back.
#
# A candidate has only the words that its search chose, each as a property; terms are properties, too.

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


AT_ONCE = 2_000
"""Candidates that one transaction writes."""

OFTEN = 2.0
"""Seconds between two writes of plans that a running search has timed."""

Settle = Callable[[Candidate], None]
"""Called with each candidate of a running search."""

Work = Callable[[Sequence[Candidate], Settle], SearchResult]
"""Runs a search: gets the plans that were timed before, and calls the second argument with each that it settles."""


def record_search(
    store: Store,
    request: SearchRequest,
    work: Work,
    instance_of: Callable[[Candidate], str | None] = lambda each: None,
) -> tuple[SearchResult, bool]:
    """The result of a search, and whether this call searched: a finished search of the store is read.

    A search that ended before all plans were tried goes on, and so does a stopped one. work: runs the search.
    instance_of: the id of the instance of a plan, which joins the best plans to it. An error inside is raised again;
    plans that were timed before stay for the next search.
    """
    there = store.read("search/found", search=request.id)
    if there and there[0]["covered"]:
        return read_search(store, request.id), False
    if there:
        store.write("search/reopen", search=request.id, owner=new_claim())
    # A search that was merged from some of its shards counts as one without shards from now on.
    properties = {**request_properties(request), "shards": None, "finished": None}
    inputs = inputs_of(request)
    with building(store, "Search", request.id, properties, inputs, resumes=True) as lease:
        if lease is not None:
            found = SearchWriting(store, lease, request.id, request, work, instance_of).run()
    if lease is None:
        return read_search(store, request.id), False
    store.write("search/join_instances", search=request.id)
    return found, True


def read_search(store: Store, search: str) -> SearchResult:
    """A complete search of the store. Raises UsageError if there is none with this id, or one of another version."""
    return read_whole(store, "Search", search, partial(_read, store, search))


def _read(store: Store, search: str) -> SearchResult:
    row = store.read("search/found", search=search)[0]
    if row["format"] != FORMAT:
        raise UsageError(
            f"search {shown(search)} has format {row['format']}, and this stagedb reads format {FORMAT}: "
            f"remove it with {call('rm', search)}, and search again"
        )
    with reading(f"search {shown(search)}"):
        request = request_of(row["request"])
        candidates = [candidate_of(request, each["values"]) for each in store.read("search/candidates", search=search)]
    shards = None if row["finished"] is None else Shards(tuple(row["finished"]), row["shards"])
    return SearchResult(request, row["size"], tuple(candidates), row["covered"], row["left"], row["seconds"], shards)


def inputs_of(request: SearchRequest) -> list[Input]:
    """The inputs that a search is made from, with digests."""
    systems = zip(request.systems, request.digests, strict=True)
    return [
        Input("card", request.card[:20], request.model),
        *(Input("system", digest[:20], name) for name, digest in systems),
        Input("search", request.id),
    ]


@dataclass
class SearchWriting:
    """A search, or a shard of one, while it runs.

    lease: the right to write it. id: of its node. work: runs the search. instance_of: the id of the instance of a plan.
    shard: whether it is a shard, whose best plans others read while it runs. there: ids of the candidates in the store.
    timed: plans that were timed. new: those that are not written yet. written: when plans were written last, by a
    monotonic clock [s].
    """

    store: Store
    lease: Lease
    id: str
    request: SearchRequest
    work: Work
    instance_of: Callable[[Candidate], str | None]
    shard: bool = False
    there: set[str] = field(default_factory=set)
    timed: list[Candidate] = field(default_factory=list)
    new: list[Candidate] = field(default_factory=list)
    written: float = field(default_factory=time.monotonic)

    def run(self) -> SearchResult:
        """Search on from what the store has, and write what is found while the search runs. Returns the result."""
        rows = [each["values"] for each in self.store.read("search/candidates", search=self.id)]
        self.there = {row["id"] for row in rows}
        known = [candidate_of(self.request, row) for row in rows if row["fate"] == Fate.TIMED]
        self.lease.keeps = bool(known)
        try:
            found = self.work(known, self._settle)
        except BaseException:
            with suppress(StagedbError):
                self._flush()
            raise
        self._finish(found)
        return found

    def _settle(self, candidate: Candidate) -> None:
        if candidate.fate is Fate.TIMED:
            self.timed.append(candidate)
            self.new.append(candidate)
            if len(self.new) >= AT_ONCE or time.monotonic() - self.written > OFTEN:
                self._flush()

    def _flush(self) -> None:
        """Write the plans that were timed since the last write."""
        new, self.new, self.written = self.new, [], time.monotonic()
        running = [(id, replace(each, code="", why="")) for id, each in with_ids(self.id, self.request, new)]
        rows = {id: candidate_values(self.request, each) for id, each in running if id not in self.there}
        self._add({"id": id, "values": values} for id, values in rows.items())
        if self.shard:
            self.lease.set_properties(limits_of(self.request, self.timed))
        self.there |= rows.keys()
        self.lease.keeps = self.lease.keeps or bool(rows)

    def _finish(self, found: SearchResult) -> None:
        """Write all candidates with their places, then delete those that the search has no more."""
        winners = found.winners
        rows: list[dict[str, Any]] = []
        for place, (id, each) in enumerate(with_ids(self.id, self.request, found.candidates)):
            instance = self.instance_of(each) if each in winners else None
            values = {**candidate_values(self.request, each), "place": place, "instance": instance}
            rows.append({"id": id, "values": {"id": id, **without_none(values)}})
        self._write("search/change", [row for row in rows if row["id"] in self.there])
        self._add(row for row in rows if row["id"] not in self.there)
        gone = self.there - {row["id"] for row in rows}
        self._write("search/drop", [{"id": id} for id in sorted(gone)])
        properties = {
            "size": found.size,
            "timed": len(found.timed),
            "covered": found.covered,
            "step": None if found.best is None else found.best.step,
            "peak": None if found.best is None else found.best.peak,
            "left": found.left,
            "seconds": found.seconds,
            "content": content_digest(row["values"] for row in rows),
            **({} if found.shards is None else {"shards": found.shards.of, "finished": list(found.shards.numbers)}),
            **(limits_of(self.request, found.timed) if self.shard else {}),
        }
        self.lease.set_properties(properties)

    def _add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write new candidates. rows: id, and values of all properties."""
        self._write("dump/make_candidate", [{**row, "parent": self.id} for row in rows])

    def _write(self, name: str, rows: Sequence[Any]) -> None:
        for start in range(0, len(rows), AT_ONCE):
            self.lease.renew()
            self.store.write_rows(name, rows[start : start + AT_ONCE])


# Shards of a search in the store, and the search that the ended ones are merged into.
#
# A shard is a `Search` node of its own, with its own lease, so that machines write shards of one search at once; it is
# dumped and loaded as all content. While it runs, it reads what the best plans of the other shards have, and rules out
# what these beat. Whoever ends a shard merges what all shards have found by then, under the id of the search. When
# all are finished, that is the search, and the shards are removed, unless somebody tagged one.

Limits = Mapping[int, Sequence[float]]
"""By number of ranks, what the best plans have of what is to be small."""

Elsewhere = Callable[[], Limits]
"""What the best plans of the other shards have."""

ShardWork = Callable[[Sequence[Candidate], Settle, Elsewhere], SearchResult]
"""Runs a shard: gets plans that were timed before, what to call with each candidate, and what others have found."""

Parts = Mapping[int, SearchResult]
"""What shards found, by their numbers."""

MergeShards = Callable[[Parts, int], SearchResult]
"""Makes a search from the results of its shards, by number, and from how many shards there are."""


class _OverError(Exception):
    """Another process has merged all shards meanwhile."""


@dataclass(frozen=True)
class StoredShard:
    """A shard of a search in the store.

    number: of the shard, from 1. of: how many shards the search is cut into. state: finished, early (it ended before
    its time), running or stopped. made: the user who made it. limits: by number of ranks, the best values of what the
    search makes small.
    """

    id: str
    number: int
    of: int
    state: str
    made: str | None
    limits: Limits


def shards_in(store: Store, request: SearchRequest) -> list[StoredShard]:
    """The shards of a search that the store has, by number."""
    rows = store.read("search/shards", model=request.model, search=request.id)
    return [
        StoredShard(row["id"], row["number"], row["of"], _state_of(row), row["builder"], _limits(request, row))
        for row in rows
        if row["state"] != "deleting"
    ]


def _limits(request: SearchRequest, row: Mapping[str, Any]) -> Limits:
    found: dict[int, list[float]] = {}
    for value, ranks in zip(row["limits"], row["limit_ranks"] or request.ranks * len(row["limits"]), strict=False):
        found.setdefault(ranks, []).append(value)
    return found


def _state_of(row: Mapping[str, Any]) -> str:
    if row["state"] == "ready":
        return "finished" if row["covered"] else "early"
    return "stopped" if row["expired"] or dead_owner(row) is not None else "running"


def record_shard(
    store: Store,
    request: SearchRequest,
    shard: Shards,
    work: ShardWork,
    merge: MergeShards,
    instance_of: Callable[[Candidate], str | None] = lambda each: None,
) -> tuple[SearchResult, bool]:
    """The search as far as its shards are finished, and whether this call searched: a finished shard is read.

    A shard that ended early goes on, and so does a stopped one. shard: which one, of how many. work: runs it. merge:
    merges what shards have found. instance_of: the id of the instance of a plan. Raises UsageError if the store has the
    search cut into another number of shards.
    """
    _check_cut(store, request, shard)
    with suppress(_OverError):
        new = _ran(store, request, shard, work)
        return merge_shards(store, request, shard.of, merge, instance_of, new), new
    return read_search(store, request.id), False


def _check_cut(store: Store, request: SearchRequest, shard: Shards) -> None:
    other = next((each for each in shards_in(store, request) if each.of != shard.of), None)
    if other is not None:
        raise UsageError(
            f"the store has search {request.id[:12]} cut into {other.of} shards: ask for one of them, such as "
            f"{Word('shard', f'{min(shard.numbers[0], other.of)}/{other.of}')}, or remove shard {other.number}/"
            f"{other.of} and the others with {call('rm', other.id[:12])}"
        )


def _is_over(store: Store, request: SearchRequest) -> bool:
    rows = store.read("search/whole", search=request.id)
    return bool(rows) and rows[0]["state"] == "ready" and rows[0]["covered"]


def _ran(store: Store, request: SearchRequest, shard: Shards, work: ShardWork) -> bool:
    """Search a shard, unless it is finished or another process finishes it. Raises _OverError if the search is over."""
    if _is_over(store, request):
        raise _OverError
    id = shard_id(request, shard)
    if any(each.id == id and each.state == "early" for each in shards_in(store, request)):
        store.write("search/reopen", search=id, owner=new_claim())
    with building(store, "Search", id, shard_properties(request, shard), inputs_of(request), resumes=True) as lease:
        if lease is None:
            return False
        if _is_over(store, request):
            raise _OverError
        others = _Others(store, request, shard)
        there = store.read("search/found", search=request.id)
        # Plans that an earlier search without shards has timed, if it ended early.
        timed = _timed(store, request, request.id) if there and there[0]["finished"] is None else []
        SearchWriting(
            store,
            lease,
            id,
            request,
            lambda known, settled: work([*timed, *known], settled, others),
            lambda each: None,
            shard=True,
        ).run()
    return True


@dataclass
class _Others:
    """What the best plans of the other shards have: read now and then, kept in between, and while no store answers.

    Shards of one cut have no layout in common, so that no plan counts twice.
    """

    store: Store
    request: SearchRequest
    own: Shards
    values: Limits = field(default_factory=dict)
    read: float = -math.inf

    def __call__(self) -> Limits:
        if time.monotonic() - self.read > OFTEN:
            self.read = time.monotonic()
            with suppress(StagedbError):
                found = shards_in(self.store, self.request)
                others = [each for each in found if each.of == self.own.of and each.number not in self.own.numbers]
                self.values = {
                    ranks: [value for each in others for value in each.limits.get(ranks, ())]
                    for ranks in self.request.ranks
                }
        return self.values


def _timed(store: Store, request: SearchRequest, search: str) -> list[Candidate]:
    """The plans that a search or a shard has timed, also one that is not complete."""
    rows = (each["values"] for each in store.read("search/candidates", search=search))
    return [candidate_of(request, row) for row in rows if row["fate"] == Fate.TIMED]


def known_of(store: Store, request: SearchRequest) -> list[Candidate]:
    """The plans that unfinished shards of a search have timed."""
    unfinished = [each for each in shards_in(store, request) if each.state != "finished"]
    return [plan for each in unfinished for plan in _timed(store, request, each.id)]


def finished_parts(store: Store, request: SearchRequest) -> tuple[Parts, int]:
    """What finished shards found, and how many shards there are; the cut with most plans, if there are several."""
    cuts: dict[int, dict[int, SearchResult]] = {}
    for each in shards_in(store, request):
        if each.state == "finished":
            cuts.setdefault(each.of, {})[each.number] = read_search(store, each.id)
    best = max(cuts, key=lambda of: sum(part.size for part in cuts[of].values()), default=1)
    return cuts.get(best, {}), best


def merge_shards(
    store: Store,
    request: SearchRequest,
    of: int,
    merge: MergeShards,
    instance_of: Callable[[Candidate], str | None],
    new: bool,
) -> SearchResult:
    """Merge what shards have found by now, and keep it as the search.

    Raises _OverError if the store has the whole search. of: the number of shards. merge: merges their results.
    instance_of: the id of the instance of a plan. new: whether a shard has changed. A search without shards that ended
    early is left as it is until all shards are finished.
    """
    made: _Merged | None = None
    while True:
        if _is_over(store, request):
            raise _OverError
        there = next(iter(store.read("search/whole", search=request.id)), None)
        made = _Merged.of(store, request, of, merge, made)
        whole = made.found.covered
        if there is not None and there["finished"] is None and not whole:
            return made.found
        if there is not None and there["state"] == "ready":
            if not (new or whole) and tuple(there["finished"] or ()) == made.finished:
                return read_search(store, request.id)
            store.write("search/reopen", search=request.id, owner=new_claim())
        written = _written(store, request, of, merge, instance_of, made)
        if written is not None:
            return written
        new = False  # the holder of the lease before has merged all shards that were finished by then


def _written(
    store: Store,
    request: SearchRequest,
    of: int,
    merge: MergeShards,
    instance_of: Callable[[Candidate], str | None],
    made: "_Merged",
) -> SearchResult | None:
    """Write the search of the shards that are there now; None if another process has just done so."""
    properties = {**request_properties(request), "shards": of, "finished": list(made.finished)}
    with building(store, "Search", request.id, properties, inputs_of(request), resumes=True) as lease:
        if lease is None:
            return None
        found = _Merged.of(store, request, of, merge, made).found
        SearchWriting(store, lease, request.id, request, lambda known, settled: found, instance_of).run()
    store.write("search/join_instances", search=request.id)
    if found.covered:
        remove_shards(store, request)
    return found


@dataclass(frozen=True)
class _Merged:
    """A search that was merged from shards.

    parts: the number of each shard, and the process that ended it. found: the search.
    """

    parts: tuple[tuple[int, str | None], ...]
    found: SearchResult

    @property
    def finished(self) -> tuple[int, ...]:
        return self.found.shards.numbers if self.found.shards is not None else ()

    @classmethod
    def of(cls, store: Store, request: SearchRequest, of: int, merge: MergeShards, last: "_Merged | None") -> "_Merged":
        """The search of the shards that are there now; the last one if they are the same."""
        there = [each for each in shards_in(store, request) if each.of == of and each.state in ("finished", "early")]
        parts = tuple((each.number, each.made) for each in there)
        if last is not None and last.parts == parts:
            return last
        try:
            found = {each.number: read_search(store, each.id) for each in there}
        except StagedbError:
            if _is_over(store, request):  # the search is whole, so that its shards are removed
                raise _OverError from None
            raise
        return cls(parts, merge(found, of))


def remove_shards(store: Store, request: SearchRequest) -> None:
    """Remove the shards of a search that is whole, except those that somebody tagged and those that still run."""
    for each in shards_in(store, request):
        with suppress(StagedbError):
            delete(store, "Search", each.id, f"shard {each.number}/{each.of}", unnamed=True)
