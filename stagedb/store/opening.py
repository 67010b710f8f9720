"""Open a store: find which one is meant, start the embedded engine if needed, and bring the schema up to date."""

import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files.stored_values import json_mapping
from stagedb.mentions import Word, call
from stagedb.store import embedded
from stagedb.store import store_targets as targets
from stagedb.store.connection import Store
from stagedb.store.failures import RETRY_TIME, ConnectionLost, check_disk, open_driver
from stagedb.store.free_queries import Readers
from stagedb.store.migrations import described, is_older, older, pending
from stagedb.store.store_settings import config_file, project_file

# What a store of an older schema has, as the commands that make it again from model and plan.

MOST = 20
"""Instances whose commands a refusal lists."""


def check_age(store: Store, version: int) -> None:
    """Raise UsageError for a store of an older schema, with a command for each of its instances.

    version: the store's schema; 0: it has none yet.
    """
    if is_older(version):
        raise UsageError(older(version).message + _commands(store))


def _commands(store: Store) -> str:
    rows = store.read("schema/older_instances", most=MOST + 1)
    if not rows:
        return ""
    lines = [_command(row) for row in rows[:MOST]]
    more = [f"and further ones: these are the {MOST} newest"] if len(rows) > MOST else []
    return "\n".join([". Its instances:", *(f"  {line}" for line in [*lines, *more])])


def _command(row: Mapping[str, Any]) -> str:
    """The command that makes an instance again, or its plan where no command can give that.

    row: of `schema/older_instances`.
    """
    # Imported here: every command opens a store, and hardly any finds an old one.
    from stagedb.models import card_names
    from stagedb.plans import Plan
    from stagedb.search.commands import needed_words, plan_command

    name, model = str(row["name"] or ""), str(row["model"] or "")
    subject = model if model in card_names() else "CARD"
    named = ["--name", name] if name and name != model else []
    try:
        words = Plan.from_mapping(json_mapping(row["plan"], "plan")).to_dict()
        found = plan_command("instantiate", [subject], needed_words(words), named)
    except StagedbError:  # an older plan may have words that exist no more
        found = None
    if found is None:
        found = f"{shlex.join(['stagedb', 'instantiate', subject, *named])} --plan FILE, with {str(row['plan'])[:2000]}"
    return found if subject == model else f"{found}   (CARD: the card of {model or 'its model'})"


EMBEDDED_ATTEMPTS = 5


def connect(
    uri: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    database: str | None = None,
    migrate: bool = False,
    insecure: bool = False,
    option: str = str(Word("store")),
    holder: str | None = None,
) -> Store:
    """Open the store that `store_targets.choose` finds. Starts the embedded engine if it is chosen.

    An empty database becomes a store. An embedded store is migrated to the newest version, a server's only by
    `migrate`. database, insecure, option, holder: as in `choose`. uri: the store's address or name; None: the default
    one. environment: variables; None: those of this process. Raises UsageError for a store that does not answer or
    refuses the account, and for a database that does not belong to stagedb, that a newer stagedb wrote, or that waits
    for a migration.
    """
    store = open_store(
        uri, environment=environment, home=home, database=database, insecure=insecure, option=option, holder=holder
    )
    try:
        version = store.version()
        check_age(store, version)
        todo = pending(version)
        if todo and version and not migrate and store.engine != "embedded":
            raise UsageError(
                f"the store at {store.uri} waits for migration {described(todo)}: run {call('store migrate')}"
            )
        if todo:
            store.migrate()
    except BaseException as error:
        store.close()
        if isinstance(error, StagedbError) and store.engine == "embedded":
            env = os.environ if environment is None else environment
            check_disk(home or targets.home(env), error)
        raise
    return store


def open_store(
    uri: str | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    home: Path | None = None,
    database: str | None = None,
    insecure: bool = False,
    option: str = str(Word("store")),
    holder: str | None = None,
) -> Store:
    """A connection to the store as it is, without changes: to look at a store before it is used.

    database, insecure, option, holder: as in `choose`. uri: the store's address or name; None: the default one.
    environment: variables; None: those of this process.
    """
    env = os.environ if environment is None else environment
    target = targets.choose(
        uri,
        env,
        config_file(env),
        project=project_file(env),
        database=database,
        insecure=insecure,
        option=option,
        holder=holder,
    )
    if target is None:
        return _open_embedded(home or targets.home(env), env)
    account = (target.username, target.password or "") if target.username else None
    write_time = targets.write_time(env)  # first: an open driver must be closed
    driver = open_driver(target.uri, account, target.source, RETRY_TIME)
    return Store(driver, target.database, "neo4j", target.uri, write_time=write_time, workspace=target.workspace)


def open_running(home: Path) -> Store | None:
    """The embedded store of a directory if its engine runs. It starts nothing."""
    endpoint = embedded.running(home)
    return None if endpoint is None else _on_endpoint(endpoint, home)


def _open_embedded(home: Path, environment: Mapping[str, str]) -> Store:
    source = f"the embedded engine of {home}"
    for attempt in range(EMBEDDED_ATTEMPTS):
        endpoint = embedded.ensure(home, environment)
        store: Store | None = None
        try:
            store = _on_endpoint(endpoint, home)
            store.version()
            if embedded.running(home) != endpoint:
                raise ConnectionLost(f"{source} is ending")
        except BaseException as error:
            if store is not None:
                store.close()
            # The engine was about to end, or was killed at this moment. The next one starts soon.
            if attempt == EMBEDDED_ATTEMPTS - 1 or not isinstance(error, UsageError | ConnectionLost):
                raise
            time.sleep(0.5)
        else:
            return store
    raise StagedbError(f"{source} cannot be reached")


def _on_endpoint(endpoint: embedded.Endpoint, home: Path) -> Store:
    source = f"the embedded engine of {home}"
    readers = Readers(
        lambda timeout: open_driver(endpoint.uri, endpoint.reader_account(timeout), source),
        lambda: embedded.ran_out(home),
    )
    account = (endpoint.username, endpoint.password)
    return Store(open_driver(endpoint.uri, account, source), endpoint.database, "embedded", endpoint.uri, readers)
