"""Views of searches of the store: what pages and reports show of them. Nothing is written to the store."""

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stagedb.api import catalog, lookup, searching
from stagedb.api.provenance import Provenance
from stagedb.api.results import Searched, ViewedSearch
from stagedb.api.views import place_of
from stagedb.files import file_name, write_whole
from stagedb.files.stored_values import DamagedError
from stagedb.frameworks.profiles import find_profile
from stagedb.mentions import OPTIONS, Word
from stagedb.models import card_names, load_card
from stagedb.reports.search_page import render_search
from stagedb.reports.search_view import MadePlan, SearchView
from stagedb.search import Objective, SearchRequest
from stagedb.search.space import USUAL
from stagedb.store import Store, reading
from stagedb.store.contents.searches import candidate_of, request_of
from stagedb.store.naming import spaces
from stagedb.systems import System
from stagedb.systems.system_files import DEFAULT, load_system, system_names

DIGEST = 20
"""Characters of a digest that the store has of the inputs of a search."""

TOP = 5
"""Best plans of a search that names no number of them."""


def view_of(store: Store, found: Searched) -> SearchView:
    """A search of the store with all data of its pages."""
    made = made_of(store, found.id)
    commands = {place: row["command"] for place, row in enumerate(found.candidates) if row["command"] is not None}
    plans = [row["plan"] for row in found.candidates]
    return SearchView(found.result, found.model, plans, commands, rooms_of(found.result.request), made)


def report_of(store: Store, found: Searched) -> str:
    """The report of a search of the store as HTML that fetches nothing."""
    return render_search(view_of(store, found), provenance_of(found.result.request).facts())


def save_search_report(store: Store, word: str | None, out: Path | str | None, force: bool) -> ViewedSearch:
    """Write the report of a search as a page. The arguments are those of `Stagedb.report_search`."""
    info = lookup.the_search(store, word)
    ranks = "-".join(map(str, sorted({info.ranks[0], info.ranks[-1]})))
    path = place_of(f"{file_name(info.model)}-{ranks}-search", out, ".html", force)
    found = searching.searched_in(store, info.id)
    made = report_of(store, found).encode()
    write_whole(path, made, str(Word("out")))
    best = found.result.best
    verdict = f"the best of {found.size:,} plans takes {best.step / 1e6:,.1f} ms" if best else "no plan that fits"
    return ViewedSearch(path, len(made), info, verdict)


def provenance_of(request: SearchRequest) -> Provenance:
    """The provenance of a search: its inputs, and the command that runs it again.

    The command shows the stored search where no command can have all that the search was asked.
    """
    command = search_command(request) or shlex.join(["stagedb", "report", request.id])
    systems = zip(request.systems, request.digests, strict=True)
    made = [("card", request.card, request.model), *(("system", digest, name) for name, digest in systems)]
    inputs: list[dict[str, str | None]] = [
        {"kind": kind, "digest": digest[:DIGEST], "name": name} for kind, digest, name in made
    ]
    return Provenance((command,), (*inputs, {"kind": "search", "digest": request.id, "name": None}))


def search_command(request: SearchRequest) -> str | None:
    """The command that asks the same; None for a model or a system that is not that of the library, and for a word
    whose value the command line does not take."""
    same = request.model in card_names() and load_card(request.model).digest == request.card
    doubled = [request.ranks[0] << at for at in range(len(request.ranks))]
    spans = len(doubled) > 1 and list(request.ranks) == doubled
    ranks = f"{doubled[0]}-{doubled[-1]}" if spans else ",".join(map(str, request.ranks))
    words = find_profile(request.framework).given_words(request.words) if request.framework else dict(request.words)
    usual: dict[str, Any] = {name: words.pop(name) for name in ("global_batch_size", "seq_len") if name in words}
    plain = all(isinstance(value, bool | int | str) for value in words.values())
    if not same or len(_presets(request)) < len(request.systems) or not plain:
        return None
    given: dict[str, Any] = {
        "model": request.model,
        "ranks": ranks,
        **usual,
        "system": None if request.systems == (DEFAULT,) else ",".join(request.systems),
        "framework": request.framework or None,
        "allow": None if request.allow == USUAL else ",".join(request.allow) or "none",
        "fits": None if request.room is None else f"{request.room}B",
        "by": None if request.by is Objective.STEP else request.by.value,
        "where": request.where or None,
        "top": None if request.top == TOP else request.top,
    }
    parts = [part for name, value in given.items() if value is not None for part in (_option(name), str(value))]
    pairs = {"fix": {name: str(value).lower() if isinstance(value, bool) else value for name, value in words.items()}}
    pairs |= {"price": dict(request.prices), "watts": dict(request.watts)}
    parts += [part for name, each in pairs.items() for word in each for part in (_option(name), f"{word}={each[word]}")]
    return shlex.join(["stagedb", "search", *parts])


def _option(name: str) -> str:
    return OPTIONS.word(Word(name))


def rooms_of(request: SearchRequest) -> dict[str, int | None]:
    """By name of a system that a search used, the bytes that an accelerator has for tensors; None without a limit.

    Without a limit that the search sets, only presets are there whose numbers are still the same.
    """
    if request.room is not None:
        return dict.fromkeys(request.systems, request.room)
    return {name: preset.accelerator.room for name, preset in _presets(request).items()}


def _presets(request: SearchRequest) -> dict[str, System]:
    """The systems of a search that are presets of this version, with the numbers that the search had."""
    found = {}
    for name, digest in zip(request.systems, request.digests, strict=True):
        if name in system_names():
            preset = load_system(name)
            if searching.system_digest(preset) == digest:
                found[name] = preset
    return found


def made_of(store: Store, search: str) -> dict[int, list[MadePlan]]:
    """The instances that plans of a search became, by the place of the plan."""
    own = spaces(store)
    found: dict[int, list[MadePlan]] = {}
    for row in store.read_sound("search/made", search=search):
        name = catalog.called(row["names"], row["name"], own)
        found.setdefault(row["place"], []).append(MadePlan(row["instance"], name, tuple(row["profiles"])))
    return found


def best_plans(store: Store, searches: Iterable[str]) -> dict[str, str]:
    """The best plan of each of these complete searches in words, by the id of the search; those with none are absent.

    A search that cannot be read is absent too.
    """
    ids = list(searches)
    found = {}
    for row in store.read_sound("search/best", searches=ids):
        try:
            with reading(f"search {row['search']}"):
                request = request_of(row["request"])
                found[row["search"]] = searching.described(candidate_of(request, row["values"]), request)
        except DamagedError:
            continue
    return found
