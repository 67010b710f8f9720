"""The options that describe a graph and a plan, from the words that `stagedb.plans.aspects` declares."""

import dataclasses
from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.help_groups import WORDS
from stagedb.errors import UsageError
from stagedb.files import nearest, path_text, shown
from stagedb.frameworks.engines.names import ENGINES
from stagedb.mentions import OPTIONS, Options, Word, shown_in, value_text
from stagedb.plans.aspects import GRAPH_WORDS, PLAN_WORDS, PlanWord

if TYPE_CHECKING:
    from typing import Unpack

    from stagedb.api.plan_keywords import GraphWords as GraphKeywords
    from stagedb.api.plan_keywords import PlanWords as PlanKeywords
    from stagedb.frameworks.engines import EngineSettings


@dataclass(frozen=True)
class _Given:
    """Words of a plan, each an option; None if the command line does not give one."""

    plan: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read these words from a YAML, JSON or TOML file, or from arguments of a serving engine "
            f"({', '.join(f'{name}:FILE' for name in ENGINES)}); options given here win.",
        ),
    ] = None

    def words(self) -> dict[str, Any]:
        """The words of the file, with those of the command line on top."""
        given = self._given()
        if self.plan is None:
            return given
        from stagedb.plans import read_plan_file

        return {**read_plan_file(self.plan, given), **given}

    @cached_property
    def engine(self) -> "EngineSettings | None":
        """The settings of a serving engine, if the file has those."""
        if self.plan is None:
            return None
        from stagedb.frameworks.engines import engine_file, read_settings

        named = engine_file(self.plan)
        return None if named is None else read_settings(*named)

    def remarks(self, model: str | None) -> tuple[str, ...]:
        """Remarks about what an engine's file has and no step has.

        model: the one of the command line, or an instance. Raises UsageError for settings that are not built for this
        model, and for those of an engine without a model.
        """
        if self.engine is None:
            return ()
        if model is None:
            raise UsageError(_no_model(self.engine))
        from stagedb.api.model_names import card_source, find_card
        from stagedb.frameworks.engines import check_experts, remarks

        card = None if model is None else find_card(model)
        # The model of an instance is in the store alone.
        check_experts(self.engine, self._given(), card is None or "E" in card_source(card, {}).sizes)
        return tuple(remarks(self.engine))

    def message_form(self) -> Options:
        """How a message shows words of the plan."""
        from stagedb.frameworks.engines import engine_file

        if self.plan is None or engine_file(self.plan) is not None:
            return OPTIONS

        return PlanFileKeys(self.plan, self._given().keys())

    def _given(self) -> dict[str, Any]:
        """The words that are options of the command line."""
        return {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name != "plan" and (value := getattr(self, field.name)) is not None
        }


def _no_model(engine: "EngineSettings") -> str:
    """The refusal of a file of an engine where no model is named, with the one of the library like the file's."""
    from stagedb.models import card_names

    named = (engine.model or "").rpartition("/")[2].lower()
    near = nearest(named, card_names())
    its = "" if engine.model is None else f" of {shown(engine.model)}"
    way = str(Word("model", near[0])) if near else f"{Word('model')} MODEL"
    return f"{engine.place} has a step{its}, and no model of the library is named: add {way}"


def _options(name: str, words: Mapping[str, PlanWord]) -> type[_Given]:
    """A dataclass with a field for each word that is an option, for `option_groups`."""
    fields = [_FIELDS[name] for name in words if name in _FIELDS]
    return dataclasses.make_dataclass(name, fields, bases=(_Given,), frozen=True, namespace={"__module__": __name__})


def _field(word: PlanWord) -> tuple[str, Any, None]:
    # Lists, and words that may name a file, are text here. `typed_words` reads them.
    type_: Any = word.kind if word.kind in (int, float, bool) else str
    # A placeholder such as `torch|megatron|FILE` has the values in lower case.
    choices = [each for each in (word.metavar or "").split("|") if each == each.lower()]
    option = typer.Option(
        *word.flags,
        metavar=word.metavar,
        help=shown_in(OPTIONS, word.help),
        rich_help_panel=WORDS[word.aspect],
        autocompletion=completion.one_of(lambda: choices) if choices else None,
    )
    return word.name, Annotated[type_ | None, option], None


_FIELDS = {name: _field(word) for name, word in PLAN_WORDS.items() if word.about.command_line}


if TYPE_CHECKING:

    class GraphFlags(_Given):
        """Those words of a plan that change the structure of a graph."""

        def __init__(self, *, plan: Path | None = None, **words: Unpack[GraphKeywords]) -> None: ...

    class PlanFlags(_Given):
        """All words of a plan, of training and of serving: those of its graph, and how ranks share the work."""

        def __init__(self, *, plan: Path | None = None, **words: Unpack[PlanKeywords]) -> None: ...

else:
    GraphFlags = _options("GraphFlags", GRAPH_WORDS)
    PlanFlags = _options("PlanFlags", PLAN_WORDS)

# Messages about a plan whose words are in a file: keys of that file in place of options.


@dataclass(frozen=True)
class PlanFileKeys(Options):
    """Keys of a plan's file, `tp: 4`; options for words that the command line gives, and for others than a plan's."""

    file: Path
    given: Set[str]

    def word(self, word: Word) -> str:
        """`tp: 4`, with the marks of code; the name alone without a value."""
        if word.name not in PLAN_WORDS or word.name in self.given:
            return super().word(word)
        if word.value is None:
            return word.name
        return f"`{word.name}: {str(word.value).lower() if isinstance(word.value, bool) else value_text(word.value)}`"

    def words(self, words: tuple[Word, ...]) -> str:
        """Words as keys of a file, such as `tp: 4, pp: 2`. words: with their values."""
        return ", ".join(map(self.word, words))

    def whole(self, text: str, message: str) -> str:
        """The message after the file's name, if it names keys of the file.

        text: the message in the file's words. message: as the core has it.
        """
        place = path_text(self.file)
        return text if place in text or text == shown_in(OPTIONS, message) else f"{place}: {text}"
