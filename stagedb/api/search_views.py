"""Views of searches of the store: what pages and reports show of them. Nothing is written to the store."""

from collections.abc import Iterable

from stagedb.api import catalog, searching
from stagedb.api.results import Searched
from stagedb.inputs.stored_values import DamagedError
from stagedb.reports.search_view import MadePlan, SearchView
from stagedb.search import SearchRequest
from stagedb.store import Store, reading
from stagedb.store.contents.search_rows import candidate_of, request_of
from stagedb.store.naming import spaces
from stagedb.systems.system_files import load_system, system_names


def view_of(store: Store, found: Searched) -> SearchView:
    """A search of the store with all data of its pages."""
    made = made_of(store, found.id)
    commands = {place: row["command"] for place, row in enumerate(found.candidates) if row["command"] is not None}
    plans = [row["plan"] for row in found.candidates]
    return SearchView(found.result, found.model, plans, commands, rooms_of(found.result.request), made)


def search_view(store: Store, word: str | None) -> SearchView:
    """The same by the start of an id; None: the newest search."""
    return view_of(store, searching.searched_in(store, word))


def rooms_of(request: SearchRequest) -> dict[str, int | None]:
    """Bytes for tensors of an accelerator of each system; None without a limit. What is no preset is absent."""
    if request.room is not None:
        return dict.fromkeys(request.systems, request.room)
    found = {}
    for name, digest in zip(request.systems, request.digests, strict=True):
        if name in system_names():
            preset = load_system(name)
            if searching.system_digest(preset) == digest:
                found[name] = preset.accelerator.room
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
