"""Dumps: graphs, instances, profiles, searches and runs of a store in a file, and from a file into a store."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from stagedb.api import catalog, lookup
from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo, RunInfo, SearchInfo
from stagedb.errors import UsageError
from stagedb.files import path_text, whole_file
from stagedb.mentions import Word, call
from stagedb.store import Kind, Notice, Store, load_dump, records_of, write_records
from stagedb.store.contents.content_proofs import ContentProof
from stagedb.store.dumping import marks_of


def dump(store: Store, path: Path, words: Sequence[str], force: bool, notice: Notice | None) -> int:
    """Write things with all that they need into a file; without words, all of the store. Returns their number.

    words: names or ids of things. Raises UsageError for an unknown word, for an empty store, and for a file that is
    there already, unless `force` is set.
    """
    if path.exists() and not force:
        raise UsageError(f"{path_text(path)} is there already: {Word('force', True)} replaces it")
    things = wanted(store, words)
    if not things:
        raise UsageError(f"the store has nothing to dump: make an instance with {call('instantiate', 'MODEL')}")
    with whole_file(path, "FILE", replace=force) as file:
        heard = notice or _unheard
        write_records(file, chain(records_of(store, things, heard), marks_of(store, things, not words, heard)))
    return len(things)


def load(store: Store, path: Path, notice: Notice | None) -> int:
    """Check all of a dump, then write what the store lacks of it. Returns the number of things that were written."""
    return load_dump(store, path, ContentProof(), notice or _unheard)


def _unheard(line: str) -> None:
    """Where nobody wants to know about progress."""


def wanted(store: Store, words: Sequence[str]) -> list[tuple[Kind, str]]:
    """Kinds and ids of things and of what they are made from: each graph before its instances, and each instance before
    its profiles; searches and runs at the end. Without words, all of the store. UsageError for an unknown word."""
    if words:
        chosen = [lookup.find(store, word) for word in words]
        profiles = {each.id: each.instance for each in chosen if isinstance(each, ProfileInfo)}
        made = [lookup.made_instance(store, id) for id in sorted({*profiles.values()})]
        made += [each for each in chosen if isinstance(each, InstanceInfo)]
        instances = {each.id: each.graph for each in made}
        graphs = {*instances.values(), *(each.id for each in chosen if isinstance(each, GraphInfo))}
        searches = {each.id for each in chosen if isinstance(each, SearchInfo)}
        runs = {each.id for each in chosen if isinstance(each, RunInfo)}
    else:
        profiles = {each.id: each.instance for each in catalog.profiles(store)}
        instances = {each.id: each.graph for each in catalog.instances(store)}
        graphs = {each.id for each in catalog.graphs(store)}
        searches = {each.id for each in catalog.searches(store)}
        runs = {each.id for each in catalog.runs(store)}
    found: list[tuple[Kind, str]] = []
    for graph in sorted(graphs):
        found.append(("Graph", graph))
        for instance in sorted(id for id, of in instances.items() if of == graph):
            found.append(("Instance", instance))
            found.extend(("Profile", id) for id, of in sorted(profiles.items()) if of == instance)
    found.extend(("Search", id) for id in sorted(searches))
    found.extend(("Run", id) for id in sorted(runs))
    return found
