"""Named stores: add, use, list and remove them in the configuration file of the user and in that of a project."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagedb.api.results import Rows
from stagedb.errors import UsageError
from stagedb.files import path_text, shown
from stagedb.mentions import OPTIONS, Word, shown_in
from stagedb.store import naming, settings_files, store_settings, store_targets
from stagedb.store.store_settings import (
    EMBEDDED,
    InFile,
    InKeyring,
    InVariable,
    NamedStore,
    PasswordSource,
    check_encrypted,
    split_uri,
)

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

USERNAME = "neo4j"
"""The account of a store with a password, if nobody names another one: that of a new Neo4j."""

WHAT = "configuration file"
COLUMNS = ("name", "used", "address", "database", "account", "password", "workspace")


@dataclass(frozen=True)
class NewStore:
    """A store to add. uri: without a password. insecure: send the password unencrypted too."""

    name: str
    uri: str
    username: str | None = None
    database: str | None = None
    workspace: str | None = None
    password: PasswordSource | None = None
    insecure: bool = False


def add(new: NewStore, *, replace: bool = False, password: Callable[[], str] | None = None) -> Path:
    """Add a store to the configuration file of the user, which never gets a password. Returns that file.

    replace: a store of this name too. password: gives the password that goes into the keyring, if the store's is
    there. Raises UsageError for what cannot be a store, and for a name that is taken.
    """
    name, config = store_settings.checked_name(new.name, "NAME"), store_settings.config_file(os.environ)
    address, account = _checked(new)
    _check_free(name, config, replace)
    if isinstance(new.password, InKeyring) and password is not None:
        store_settings.check_keyring()
        store_settings.keep(address, str(account), password())
    elif isinstance(new.password, InFile):
        store_settings.password_of(new.password, address, account, str(Word("password_file")), os.environ)
    table = {
        "uri": address,
        "username": account,
        "database": new.database,
        "workspace": new.workspace,
        **_written(new.password),
        "insecure": new.insecure or None,
    }

    def change(document: "TOMLDocument") -> None:
        import tomlkit

        stores = document.setdefault("stores", tomlkit.table(is_super_table=True))
        if name in stores and not replace:
            raise _taken(name, config)
        stores[name] = {key: value for key, value in table.items() if value is not None}

    settings_files.edit(config, WHAT, change, lambda path: store_settings.named_store(name, _read(path)))
    return config


def _checked(new: NewStore) -> tuple[str, str | None]:
    """The address without an account, and the account's name."""
    address, inside, password = split_uri(new.uri, "URI")
    if password is not None:
        raise UsageError(
            "URI has a password, which everybody on this machine can see in the list of processes: change it, and "
            f"give the URI without it, with {Word('keyring')}, {Word('password_file')} or {Word('password_env')}"
        )
    if inside is not None and new.username not in (None, inside):
        raise UsageError(
            f"URI has the user {shown(inside)}, and {Word('username')} is {shown(new.username)}: leave one out"
        )
    account = new.username or inside
    if account is not None and new.password is None:
        raise UsageError(
            f"an account needs its password: add {Word('keyring')}, {Word('password_file', 'FILE')} or "
            f"{Word('password_env', 'NAME')}"
        )
    if new.password is not None:
        account = account or USERNAME
        if not new.insecure:
            check_encrypted(address, "URI")
    if new.database is not None:
        store_settings.checked_database(new.database, str(Word("database")))
    if new.workspace is not None:
        naming.checked_workspace(new.workspace, str(Word("workspace")))
    return address, account


def _written(source: PasswordSource | None) -> dict[str, Any]:
    match source:
        case InVariable(name):
            return {"password_env": name}
        case InFile(path):
            return {"password_file": str(path.absolute())}
        case InKeyring():
            return {"keyring": True}
    return {}


def _check_free(name: str, config: Path, replace: bool) -> None:
    """Before a password is asked for."""
    if not replace and name in store_settings.read_settings(config).content.get("stores", {}):
        raise _taken(name, config)


def _taken(name: str, config: Path) -> UsageError:
    return UsageError(f"{path_text(config)} has a store named {shown(name)}: add {Word('force', True)} to replace it")


def _read(path: Path) -> store_settings.SettingsFile:
    return store_settings.read_settings(path)


def use(name: str, *, project: bool = False) -> Path:
    """Make a named store, or `embedded`, the default of the user, or that of a project. Returns the file.

    project: in the nearest `.stagedb.toml`, else in a new one in the working directory. It gets the address, the
    database and the workspace too, so a colleague who lacks the store is shown how to add it. Raises UsageError for an
    unknown name.
    """
    config = store_settings.config_file(os.environ)
    found = None if name == EMBEDDED else _known(name, config, "NAME")
    if not project:

        def change(document: "TOMLDocument") -> None:
            document["default"] = name

        settings_files.edit(config, WHAT, change, _read)
        return config
    path = store_settings.project_file(os.environ) or Path.cwd() / store_settings.PROJECT_NAME
    if path.exists():
        # Raises UsageError for a file that cannot be used, before it is changed.
        store_targets.project_of(path, os.environ)
    wanted = {
        "store": name,
        "uri": found and found.uri,
        "database": found and found.database,
        "workspace": found and found.workspace,
    }

    def choose(document: "TOMLDocument") -> None:
        document.pop("username", None)
        for key, value in wanted.items():
            if value is not None:
                document[key] = value
            elif key != "workspace":
                document.pop(key, None)

    settings_files.edit(path, "project file", choose, lambda made: store_settings.read_project(made, named=True))
    return path


def remove(name: str) -> tuple[Path, bool, bool]:
    """Remove a store from the configuration file, and its password from the keyring if no other store needs it.

    The server and its content stay. Returns the file, whether the store was the default, and whether the keyring had a
    password. Raises UsageError for an unknown name.
    """
    config = store_settings.config_file(os.environ)
    found = _known(name, config, "NAME")
    was_default = store_settings.read_settings(config).content.get("default") == name

    def change(document: "TOMLDocument") -> None:
        document.get("stores", {}).pop(name, None)
        if document.get("default") == name:
            del document["default"]

    settings_files.edit(config, WHAT, change, _read)
    forgot = False
    if isinstance(found.password, InKeyring) and not any(
        (each.uri, each.username) == (found.uri, found.username) and isinstance(each.password, InKeyring)
        for each in store_settings.named_stores(store_settings.read_settings(config))
    ):
        forgot = store_settings.forget(found.uri, str(found.username))
    return config, was_default, forgot


def listed() -> Rows:
    """The named stores and the embedded one; the one that is used without `--store` has what names it in `used`."""
    settings = store_settings.read_settings(store_settings.config_file(os.environ))
    chosen = store_targets.selected(None, os.environ)
    by = shown_in(OPTIONS, chosen.by)
    rows = [_row(each, by if chosen.name == each.name else None) for each in store_settings.named_stores(settings)]
    rows.append((EMBEDDED, by if chosen.is_embedded else None, None, None, None, None, None))
    if chosen.uri is not None:
        address, account, _ = split_uri(chosen.uri, chosen.by)
        database = os.environ.get(store_targets.DATABASE)
        account = account or os.environ.get("NEO4J_USERNAME")
        rows.append((None, by, address, database, account, "environment" if account else None, None))
    return Rows(COLUMNS, tuple(rows))


def _row(store: NamedStore, used: str | None) -> tuple[str | None, ...]:
    password = None if store.password is None else str(store.password)
    return (store.name, used, store.uri, store.database, store.username, password, store.workspace)


def chosen() -> tuple[str | None, str]:
    """The name of the store that is used without `--store`, None for an address; and what names it."""
    found = store_targets.selected(None, os.environ)
    return found.name, shown_in(OPTIONS, found.by)


def names() -> list[str]:
    """The names that `use` and `--store` take."""
    settings = store_settings.read_settings(store_settings.config_file(os.environ))
    return [*sorted(settings.content.get("stores", {})), EMBEDDED]


def _known(name: str, config: Path, option: str) -> NamedStore:
    return store_settings.named_store(name, store_settings.read_settings(config), option)
