"""The command that makes or profiles a plan."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.plans import Plan
from stagedb.plans.aspects import PLAN_WORDS


def profile_command(subject: Sequence[str], words: Mapping[str, Any], options: Sequence[str] = ()) -> str | None:
    """The command that profiles a subject, a model or an instance, under these words: see `plan_command`."""
    return plan_command("profile", subject, words, options)


def plan_command(
    verb: str, subject: Sequence[str], words: Mapping[str, Any], options: Sequence[str] = ()
) -> str | None:
    """The command of a verb with a subject, a model or an instance, under these words.

    None if a word has a value that the command line takes only from a file.
    """
    parts = ["stagedb", verb, *subject]
    for word, value in words.items():
        about = PLAN_WORDS[word]
        if not about.about.command_line:
            return None
        if about.kind is bool:
            parts.append(about.flag(value))
        else:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else _number(value)
            parts += [about.flag(value), text]
    return shlex.join([*parts, *options])


def needed_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan without those that have the defaults of its framework and its format."""
    common = {word: words[word] for word in ("recipe", "dtype") if word in words}
    usual = Plan.from_mapping(common).to_dict()
    always = {"seq_len", "recipe"}
    return {word: value for word, value in words.items() if word in always or value != usual.get(word)}


def words_with(profile: FrameworkProfile, words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan that a command gives together with a framework, which implies the others.

    What the framework implies and the plan has otherwise is there, with its default too.
    """
    given = profile.given_words(words)
    needed = {word: value for word, value in needed_words(words).items() if word in given}
    plan = Plan.from_mapping(words).to_dict()
    others = {word for word, value in profile.plan_words(needed).items() if plan.get(word) not in (None, value)}
    return {**needed, **{word: plan[word] for word in sorted(others - needed.keys())}}


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
