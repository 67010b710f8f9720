"""Dumps of a store's content into a file and back, and push and pull of what another store lacks."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO, cast

from stagedb.api import catalog, lookup
from stagedb.api.results import GraphInfo, InstanceInfo, ProfileInfo, RunInfo, SearchInfo
from stagedb.errors import StagedbError, UsageError
from stagedb.files import path_text, whole_file
from stagedb.mentions import Word, call
from stagedb.store import (
    DumpError,
    Kind,
    Notice,
    Store,
    connect,
    load_dump,
    migrations,
    open_store,
    records_of,
    write_records,
)
from stagedb.store.contents.content_proofs import ContentProof
from stagedb.store.dumping import check_different, keep_marks, load_file, marks_of, origin_of
from stagedb.store.schema import ancestors


def dump(store: Store, path: Path, words: Sequence[str], force: bool, notice: Notice | None) -> int:
    """Write things with all that they need into a file; without words, all of the store. Returns their number.

    words: names or ids of things. Raises UsageError for an unknown word, for an empty store, and for a file that is
    there already, unless `force` is set.
    """
    if path.exists() and not force:
        raise UsageError(f"{path_text(path)} is there already: {Word('force', True)} replaces it")
    things = wanted_things(store, words)
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


def wanted_things(store: Store, words: Sequence[str]) -> list[tuple[Kind, str]]:
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


# Push and pull: what one store lacks of another one goes there, by the encoding and the checks of a dump.


def push(store: Store, words: Sequence[str], to: str, insecure: bool, notice: Notice | None) -> int:
    """Send things to the store that `to` names, with what they are made from. Returns how many were new there.

    words: ids or names; none: all. insecure: send the password unencrypted to another machine too. notice: called with
    a line for each thing.
    """
    with connect(to, insecure=insecure, option=str(Word("to")), holder=_holder(store)) as target:
        return move(store, target, words, notice or (lambda line: None))


def pull(store: Store, words: Sequence[str], source: str, insecure: bool, notice: Notice | None) -> int:
    """Fetch things from the store that `source` names, which is only read. Returns the number of new things.

    words: ids or names; none: all. insecure: send the password unencrypted to another machine too. notice: called with
    a line for each thing.
    """
    with ExitStack() as opened:
        other = opened.enter_context(
            open_store(source, insecure=insecure, option=str(Word("from")), holder=_holder(store)).only_read()
        )
        version = other.version()
        if version != migrations.NEWEST:
            state = f"has schema {version}" if version else "is empty"
            raise UsageError(
                f"the store at {other.uri} {state}, and this stagedb reads schema {migrations.NEWEST}: use it once by "
                f"itself (`stagedb --help` names commands), or upgrade stagedb"
            )
        return move(other, store, words, notice or (lambda line: None))


def _holder(store: Store) -> str | None:
    """The server that the account in the environment belongs to, unless NEO4J_URI names one."""
    return store.uri if store.engine == "neo4j" else None


def move(source: Store, target: Store, words: Sequence[str], notice: Notice) -> int:
    """Write what the target lacks of things of the source, and of what they are made from.

    words: names or ids in the source. Everything is read and checked before anything is written. Returns the number of
    things that were written. Raises UsageError for an unknown word and for two connections to one store, StagedbError
    for content that is not sound.
    """
    if not words:
        raise UsageError(f"name at least one graph, instance, profile or search: {call('ls')} lists them")
    wanted = wanted_things(source, words)
    check_different(source, target)
    there = {(row["kind"], row["id"]) for row in target.read("check/things")}
    needed = lacking(wanted, there)
    # Names, tags and notes are read and checked before anything is written, as those of a dump are.
    marks = list(marks_of(source, wanted, False, notice))
    written = _send(source, target, needed, notice) if needed else 0
    if kept := keep_marks(target, marks, origin_of(source.uri), notice):
        notice(f"{kept:,} names, tags and notes were new")
    return written


def _send(source: Store, target: Store, needed: Sequence[tuple[Kind, str]], notice: Notice) -> int:
    with _spool() as file:
        write_records(file, records_of(source, needed, notice))
        try:
            return load_file(target, source.uri, file, ContentProof(), notice)
        except DumpError as error:
            what = error.message.partition(". Nothing was written")[0]
            raise StagedbError(
                f"nothing was sent, because the content of the source is not sound: {what}. {call('store check')} "
                "there lists all that is wrong"
            ) from None


@contextmanager
def _spool() -> Iterator[BinaryIO]:
    """A file without a name. Raises UsageError if there is no room for it."""
    try:
        with tempfile.TemporaryFile() as file:
            yield cast("BinaryIO", file)
    except OSError as error:
        raise UsageError(
            f"what is to be sent does not fit into {tempfile.gettempdir()} ({error.strerror}): make room there, or "
            "name another directory with TMPDIR"
        ) from None


def lacking(wanted: Sequence[tuple[Kind, str]], there: set[tuple[str, str]]) -> list[tuple[Kind, str]]:
    """Things that are not there, and those that they are made from, with which they are checked.

    wanted: each graph before its instances, and each instance before its profiles.
    """
    found: list[tuple[Kind, str]] = []
    line: list[tuple[Kind, str]] = []
    for each in wanted:
        line = [*line[: len(ancestors(each[0]))], each]
        if each not in there:
            found += [above for above in line if above not in found]
    return found
