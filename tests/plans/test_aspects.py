"""The declaration of a plan's word: what the command line, refusals and the store take from it."""

from collections import Counter
from typing import Annotated, Any, Literal

import pytest

from stagedb.errors import UsageError
from stagedb.mentions import OPTIONS, shown_in
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.aspects import FORMAT_WORDS, GRAPH_WORDS, LAYOUT_WORDS, PLAN_WORDS
from stagedb.plans.aspects.word import WordSpec, aspect, words_of
from stagedb.plans.nearest_plans import Way


@aspect
class Samples:
    count: Annotated[int, WordSpec("A number.", property="a number", least=2, unit="tokens")] = 4
    chance: Annotated[float | None, WordSpec("A share.", property="a share", unset="none")] = None
    way: Annotated[Literal["left", "right", "both"], WordSpec("A way.", property="a way", noun="direction")] = "left"
    turned: Annotated[bool, WordSpec("A switch.", property="a switch", off="straight")] = False
    waits: Annotated[bool | None, WordSpec("Another.", property="another", unset="as usual")] = None
    sizes: Annotated[tuple[int, ...] | None, WordSpec("Sizes.", property="sizes", unset="even", filled=True)] = None
    names: Annotated[tuple[str, ...], WordSpec("Names.", property="names", metavar="NAME,…", name="named")] = ("a", "b")
    undeclared: int = 0


DENSE = {"L": 32, "H": 4096, "A": 32, "KV": 8, "D": 128, "F": 14336, "V": 128256}
SAMPLES = {word.name: word for word in words_of(Samples)}


def test_every_field_with_a_declaration_is_a_word() -> None:
    assert list(SAMPLES) == ["count", "chance", "way", "turned", "waits", "sizes", "named"]
    assert (SAMPLES["named"].field, SAMPLES["named"].aspect) == ("names", "test_aspects")


@pytest.mark.parametrize(
    ("word", "flags", "metavar", "help_"),
    [
        ("count", "--count", "N", "A number.  [4]"),
        ("chance", "--chance", "F", "A share.  [none]"),
        ("way", "--way", "left|right|both", "A way.  [left]"),
        ("turned", "--turned/--straight", None, "A switch.  [straight]"),
        ("waits", "--waits/--no-waits", None, "Another.  [as usual]"),
        ("sizes", "--sizes", "N,N,…", "Sizes.  [even]"),
        ("named", "--named", "NAME,…", "Names.  [a,b]"),
    ],
)
def test_the_command_line_shows_what_is_declared(word: str, flags: str, metavar: str | None, help_: str) -> None:
    found = SAMPLES[word]
    assert (found.flags, found.metavar, found.help) == ((flags,), metavar, help_)


@pytest.mark.parametrize(
    ("word", "value", "option"),
    [
        ("turned", True, "--turned"),
        ("turned", False, "--straight"),
        ("waits", False, "--no-waits"),
        ("count", 0, "--count"),
    ],
)
def test_a_switch_that_is_off_has_another_option(word: str, value: object, option: str) -> None:
    assert SAMPLES[word].flag(value) == option


def test_a_way_out_names_the_option_that_there_is() -> None:
    way = Way({"loss_parallel": False, "sp": True, "tp": 2})
    assert shown_in(OPTIONS, str(way)) == "--gather-logits --sp --tp 2"


@pytest.mark.parametrize(
    ("word", "value", "options"),
    [
        ("capacity_factor", 1.5, "--capacity-factor is"),
        ("expert_load", (2, 1), "--expert-load is"),
        ("expert_tp", False, "--no-expert-tp is"),
        ("routing", [[0, 1]], "--routing is"),
        ("dispatch", "ranks", "--ep and --dispatch are"),
        # Without ep there is nothing that --no-ep-sync could leave out, and no rank to send tokens to.
        ("ep_sync", False, "--ep and --no-ep-sync are"),
    ],
)
def test_a_word_about_experts_is_refused_for_a_model_without_them(word: str, value: object, options: str) -> None:
    more = {"dp": 2, "ep": 2} if word in ("ep_sync", "dispatch") else {}
    with pytest.raises(UsageError, match=f"^{options} for a model with experts"):
        Plan.from_mapping({word: value, **more}).check(DENSE)


def test_the_store_has_the_type_of_the_field() -> None:
    types = {name: word.property_type for name, word in SAMPLES.items()}
    assert types == {
        "count": "integer",
        "chance": "float?",
        "way": "string",
        "turned": "boolean",
        "waits": "boolean?",
        "sizes": "integer[]",
        "named": "string[]",
    }


@pytest.mark.parametrize(
    ("word", "value", "refusal"),
    [
        ("count", 1, "count is 1: --count takes 2 or more"),
        ("way", "up", "unknown direction 'up': --way is left, right or both"),
    ],
)
def test_a_value_that_the_declaration_excludes_is_refused(word: str, value: object, refusal: str) -> None:
    with pytest.raises(UsageError) as caught:
        SAMPLES[word].check(value)
    assert str(caught.value) == refusal


def test_a_field_that_no_text_could_give_is_no_word() -> None:
    @aspect
    class Wrong:
        table: Annotated[dict[str, int] | None, WordSpec("A table.", property="a table")] = None

    with pytest.raises(TypeError, match="dict"):
        list(words_of(Wrong))


def test_a_word_is_declared_once() -> None:
    assert len(PLAN_WORDS) == 1 + len(LAYOUT_WORDS) + len(FORMAT_WORDS) + len(GRAPH_WORDS)
    fields = Counter((word.aspect, word.field) for word in PLAN_WORDS.values())
    assert max(fields.values()) == 1


COUNTS = ("dp", "tp", "pp", "cp", "ep", "hsdp", "ulysses", "micro_batch_size", "seq_len", "virtual_stages")


@pytest.mark.parametrize("word", [*COUNTS, "recompute_every", "recompute_first"])
def test_a_plan_checks_its_counts(word: str) -> None:
    option = word.replace("_", "-")
    with pytest.raises(UsageError, match=rf"^{word} is 0: --{option} takes 1 or more$"):
        Plan.from_mapping({word: 0})


CHOICES: list[dict[str, Any]] = [
    {"recipe": "jax"},
    {"attention": "flash"},
    {"kernels": "lazy"},
    {"matmul_dtype": "fp4"},
    {"recompute": "some"},
    {"cp_kind": "spiral"},
    {"cp_chunks": "striped"},
    {"zero": 4},
]


@pytest.mark.parametrize("words", CHOICES, ids=lambda words: next(iter(words)))
def test_a_graph_checks_its_choices(words: dict[str, Any]) -> None:
    (name,) = words
    with pytest.raises(UsageError, match=rf"^unknown .*: --{name.replace('_', '-')} is "):
        GraphOptions(**words)


def test_the_stored_form_has_all_words() -> None:
    assert Plan().to_dict().keys() == PLAN_WORDS.keys() - {"ranks"}
    used = Plan(options=GraphOptions(recipe="megatron", scatter_gather=True), tp=2, pp=2)
    assert used.to_dict()["scatter_gather"] is True
    assert Plan.from_mapping(used.to_dict()) == used
