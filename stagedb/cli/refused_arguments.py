"""Command lines that cannot be read, as one line like all other errors: what is wrong, what is allowed, the nearest."""

import re
from typing import Any

import typer

from stagedb.files import did_you_mean, shown

USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]
"""What the reader of the command line raises. typer gives it no public name."""

_MOST = 200
_CHOICE = re.compile(r"(?:Value error, )?'(?P<value>.*)' is not one of (?P<choices>'.*')\.?", re.DOTALL)
_COMMAND = re.compile(r"No such command (?P<name>'.*?'|\".*?\")\.?( Did you mean .*)?", re.DOTALL)
_KINDS = (("Input should be a valid integer", "a whole number"), ("Input should be a valid number", "a number"))


def refusal(error: Any) -> str:
    """The text of the error. error: an instance of `USAGE_ERROR`."""
    context, message = error.ctx, str(error.message)
    help_ = "`stagedb --help`" if context is None else f"`{context.command_path} --help`"
    if (wanted := getattr(error, "option_name", None)) and hasattr(error, "possibilities"):
        known = [] if context is None else [name for each in context.command.params for name in each.opts]
        return f"unknown option {shown(wanted)}{_near(wanted, known)}: {help_} lists them"
    if match := _COMMAND.fullmatch(message):
        name = match["name"][1:-1]
        return f"unknown command {shown(name)}{_near(name, _commands(context))}: {help_} lists them"
    option = _name_of(getattr(error, "param", None))
    if match := _CHOICE.fullmatch(message):
        choices = re.findall(r"'([^']*)'", match["choices"])
        text = f"{', '.join(choices[:-1])} or {choices[-1]}" if len(choices) > 1 else "".join(choices)
        what = option.lstrip("-").replace("-", " ").lower()
        return f"unknown {what} {shown(match['value'])}{_near(match['value'], choices)}: {option} is {text}"
    for beginning, kind in _KINDS:
        if message.startswith(beginning):
            return f"{option} must be {kind}"
    text = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    return f"{text[:_MOST]}: {help_} shows what the command takes"


def _name_of(parameter: Any) -> str:
    """`--format` of an option with several names; `FILE` of an argument."""
    if parameter is None:
        return "an argument"
    names = [name for name in parameter.opts if name.startswith("-")]
    metavar = str(parameter.metavar or "|")
    return max(names, key=len) if names else str(parameter.name).upper() if "|" in metavar else metavar


def _commands(context: Any) -> list[str]:
    return [] if context is None else [*getattr(context.command, "commands", {})]


def _near(word: str, known: list[str]) -> str:
    return did_you_mean(word[:_MOST].lower(), known, most=2, cutoff=0.5)
