"""The store that a command uses: `--store`, the environment, the project's file, the user's, or the embedded engine."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from stagedb.errors import UsageError
from stagedb.files import path_text, shown
from stagedb.mentions import Word, call
from stagedb.places import embedded_home
from stagedb.store.store_settings import (
    EMBEDDED,
    INSECURE,
    NamedStore,
    Project,
    SettingsFile,
    check_encrypted,
    checked_database,
    config_file,
    named_store,
    named_stores,
    password_of,
    project_file,
    read_project,
    read_settings,
    split_uri,
)
from stagedb.store.store_settings import PROJECT as PROJECT_VARIABLE

_LONGEST_WRITE = 86_400
DATABASE = "NEO4J_DATABASE"
_DEFAULT_DATABASE = "neo4j"

WRITE_TIME = 60.0
"""Seconds after which a server ends a transaction that writes; STAGEDB_WRITE_TIME overrides it.

So a suspended client holds its locks no longer. One that waits for these locks has as long, and begins later. The
largest batches take a few seconds. The embedded engine ignores it: it has no locks that outlast a commit.
"""


@dataclass(frozen=True)
class StoreTarget:
    """A server's address and account. Its text leaves the password out.

    source: where the address comes from, for errors. workspace: the space of names shared with a team; None without
    one.
    """

    uri: str
    username: str | None
    password: str | None = field(repr=False)
    database: str
    source: str
    workspace: str | None = None


@dataclass(frozen=True)
class Selection:
    """Which store is meant, without its password. by: what names it.

    name: a name of the configuration file, or `embedded`; None for an address. named: the store of that name. uri: the
    address with its account, as it is given. database: the one that the project's file asks for, with its place.
    """

    by: str
    name: str | None = None
    named: NamedStore | None = None
    uri: str | None = field(default=None, repr=False)
    database: tuple[str, str] | None = None

    @property
    def is_embedded(self) -> bool:
        """Whether it is the embedded store of this machine."""
        return self.name == EMBEDDED


def choose(
    word: str | None,
    environment: Mapping[str, str],
    config: Path,
    *,
    project: Path | None = None,
    database: str | None = None,
    insecure: bool = False,
    option: str = str(Word("store")),
    holder: str | None = None,
) -> StoreTarget | None:
    """The server to use, or None for the embedded engine.

    word, project, option: as in `select`. database: the database of the server, before all other settings. insecure:
    whether a password may be sent to another machine unencrypted. STAGEDB_INSECURE and `insecure` in the configuration
    file allow it too. holder: the address of the server that the account in the environment belongs to; NEO4J_URI
    names it if it is set. The account is sent to no other server. Raises UsageError for a URI, a name or a database
    that cannot be used, and for a password that is not where it should be.
    """
    allowed = _switch(environment, INSECURE) or insecure
    found = select(word, environment, config, project=project, option=option)
    wanted = None if database is None else (checked_database(database, str(Word("database"))), str(Word("database")))
    if found.is_embedded:
        _check_no_database(found, wanted)
        return None
    if found.named is not None:
        mine = option == str(Word("store")) and not environment.get("NEO4J_URI") and environment.get(DATABASE)
        outer = (checked_database(mine, DATABASE), DATABASE) if mine else found.database
        target = _from_named(found.named, environment, allowed)
    else:
        outer, uri = None, str(found.uri)
        env = environment if found.by == "NEO4J_URI" else _account_for(uri, environment, option, holder)
        target = _from_uri(uri, env, found.by)
        if target.password and not allowed:
            check_encrypted(target.uri, target.source)
    chosen = wanted or outer
    return target if chosen is None else replace(target, database=chosen[0])


def _check_no_database(found: Selection, wanted: tuple[str, str] | None) -> None:
    if asked := wanted or found.database:
        raise UsageError(
            f"{asked[1]} names the database {shown(asked[0])}, and the embedded store has only one ({found.by}): "
            f"leave it out, or name a server with {Word('store')}"
        )


def selected(word: str | None, environment: Mapping[str, str], database: str | None = None) -> Selection:
    """Which store this process means, in its working directory. It reads no password. word, database: as in `choose`.

    environment: variables by name. Raises UsageError for what names no store, and for a database of the embedded one.
    """
    found = select(word, environment, config_file(environment), project=project_file(environment))
    if found.is_embedded:
        _check_no_database(found, None if database is None else (database, str(Word("database"))))
    return found


def select(
    word: str | None, environment: Mapping[str, str], config: Path, *, project: Path | None = None,
    option: str = str(Word("store")),
) -> Selection:  # fmt: skip
    """Which store is meant.

    word: the value of `--store`: a URI, which has ://, the name of a store in the configuration file, or `embedded`.
    Without it NEO4J_URI decides, then the project's file, then `default` in the configuration file; without these it is
    the embedded engine. option: where the word comes from, for errors. environment: variables by name. config: path of
    the configuration file. project: path of the project's file; None: there is none. Raises UsageError for what names
    no store.
    """
    if word is not None and "://" in word:
        return Selection(option, uri=word)
    if word is not None:
        return (
            Selection(option, EMBEDDED) if word == EMBEDDED else _by_name(word, read_settings(config), option, option)
        )
    if uri := environment.get("NEO4J_URI"):
        return Selection("NEO4J_URI", uri=uri)
    settings, wish = read_settings(config), project_of(project, environment)
    if wish is not None and (wish.store is not None or wish.uri is not None):
        return _by_project(wish, settings)
    found = _by_default(settings)
    return found if wish is None else replace(found, database=_database(wish))


def project_of(path: Path | None, environment: Mapping[str, str]) -> Project | None:
    """The project of a file, if there is a file.

    environment: variables by name. Raises UsageError if it cannot be used.
    """
    return None if path is None else read_project(path, named=bool(environment.get(PROJECT_VARIABLE)))


def current_project(environment: Mapping[str, str]) -> Project | None:
    """The project that the working directory belongs to, if there is one. environment: variables by name."""
    return project_of(project_file(environment), environment)


def _by_default(settings: SettingsFile) -> Selection:
    name = settings.content.get("default")
    if name is None:
        return Selection("nothing names another one", EMBEDDED)
    by = f"default in {path_text(settings.path)}"
    if name == EMBEDDED:
        return Selection(by, EMBEDDED)
    if not isinstance(name, str):
        raise UsageError(f"{settings.place('default')}: default must be the name of a store, not {shown(name)}")
    return _by_name(name, settings, by, f"default of {settings.path}")


def _by_name(name: str, settings: SettingsFile, by: str, source: str) -> Selection:
    if any(mark in name for mark in "@:/"):
        # The word may be an address with a password: errors do not show it.
        raise UsageError(
            f"{source} is neither the URI of a store nor the name of one: write a URI as bolt://host:7687, with the "
            "account in NEO4J_USERNAME and NEO4J_PASSWORD; a name has no @ : or /"
        )
    option = by if by == source else str(Word("store"))
    return Selection(by, name, named_store(name, settings, option))


def _database(wish: Project) -> tuple[str, str] | None:
    return None if wish.database is None else (wish.database, f"database in {wish.file.place('database')}")


def _by_project(wish: Project, settings: SettingsFile) -> Selection:
    """The store that a project's file chooses among those that the user added."""
    key = "store" if wish.store is not None else "uri"
    place = wish.file.place(key)
    if wish.store == EMBEDDED:
        return Selection(place, EMBEDDED, database=_database(wish))
    known = settings.content.get("stores", {})
    if wish.store is not None and (wish.uri is None or wish.store in known):
        found = named_store(wish.store, settings, place)
    else:
        found = _by_address(wish, settings, place)
    for what, wanted, has in (("uri", wish.uri, found.uri), ("username", wish.username, found.username)):
        if wanted is not None and wanted != has:
            raise UsageError(
                f"{wish.file.place(what)} wants {shown(wanted)}, and {found.source} has {shown(has)}: change the file "
                "of the project if it is wrong, or add the other one under another name, and name it with "
                f"{Word('store')}"
            )
    return Selection(place, found.name, found, database=_database(wish))


def _by_address(wish: Project, settings: SettingsFile, place: str) -> NamedStore:
    found = [
        each
        for each in named_stores(settings)
        if each.uri == wish.uri and wish.username in (None, each.username)
    ]  # fmt: skip
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(each.name for each in found)
        raise UsageError(f"{place} fits several of your stores ({names}): choose one with {Word('store')}")
    raise UsageError(
        f"{place} wants the store at {wish.uri}, which you have not added: if you trust that server, run "
        f"{call('store add', wish.store or 'NAME', str(wish.uri))} with your account, or name another one with "
        f"{Word('store')}"
    )


def _switch(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "")
    if text not in ("", "0", "1"):
        raise UsageError(f"{name} must be 1 or 0, not {shown(text)}")
    return text == "1"


def write_time(environment: Mapping[str, str]) -> float:
    """Seconds after which a server ends a transaction that writes.

    environment: variables by name; STAGEDB_WRITE_TIME among them. Raises UsageError for a text that is no time.
    """
    text = environment.get("STAGEDB_WRITE_TIME", str(WRITE_TIME))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= _LONGEST_WRITE:
        raise UsageError(
            f"STAGEDB_WRITE_TIME must be a number of seconds from 1 to {_LONGEST_WRITE}, not {shown(text)}"
        )
    return seconds


def home(environment: Mapping[str, str] | None = None) -> Path:
    """The directory of the embedded store: STAGEDB_HOME, or the user's data directory.

    environment: variables by name; None: those of this process.
    """
    return embedded_home(environment)


def _account_for(uri: str, environment: Mapping[str, str], option: str, holder: str | None) -> Mapping[str, str]:
    """The environment, without its account and database if these belong to another server than that of a URI.

    Raises UsageError if the URI has no account of its own then.
    """
    named = environment.get("NEO4J_URI")
    address, username, _ = split_uri(uri, option)
    whose = split_uri(named, "NEO4J_URI")[0] if named else holder
    if whose is None or urlsplit(whose).netloc == urlsplit(address).netloc:
        return environment
    if not username and environment.get("NEO4J_PASSWORD"):
        raise UsageError(
            f"{option} is {address}, and the account in NEO4J_USERNAME and NEO4J_PASSWORD belongs to {whose}: it is "
            f"sent to no other server. Give this one a name with its account: {call('store add', 'NAME', 'URI')}"
        )
    return {name: value for name, value in environment.items() if not name.startswith("NEO4J_")}


def _from_uri(uri: str, environment: Mapping[str, str], source: str) -> StoreTarget:
    address, username, password = split_uri(uri, source)
    database = environment.get(DATABASE)
    return StoreTarget(
        uri=address,
        username=username or environment.get("NEO4J_USERNAME"),
        password=password or environment.get("NEO4J_PASSWORD"),
        database=checked_database(database, DATABASE) if database else _DEFAULT_DATABASE,
        source=source,
    )


def _from_named(store: NamedStore, environment: Mapping[str, str], insecure: bool) -> StoreTarget:
    if store.password is not None and not (insecure or store.insecure):
        check_encrypted(store.uri, store.source)
    password = (
        None
        if store.password is None
        else password_of(store.password, store.uri, store.username, store.source, environment)
    )
    return StoreTarget(
        store.uri, store.username, password, store.database or _DEFAULT_DATABASE, store.source, store.workspace
    )
