"""What a store of an older schema has, as the commands that make it again from model and plan."""

import shlex
from collections.abc import Mapping
from typing import Any

from stagedb.errors import StagedbError, UsageError
from stagedb.files.stored_values import json_mapping
from stagedb.store.connection import Store
from stagedb.store.migrations import is_older, older

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
