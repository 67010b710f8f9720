"""A search over strategies has each set of rules once, and its steps and bytes are those of the plans."""

import dataclasses
import shlex
from itertools import combinations
from typing import Any

import pytest

from stagedb.api import Stagedb
from stagedb.api import search as search_words
from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph, weight_axes
from stagedb.lowering.program import program_of
from stagedb.models import Card, load_card
from stagedb.plans import GraphOptions, Plan
from stagedb.plans.strategies import kept, rules
from stagedb.search import Candidate, Fate, Objective, SearchRequest, SearchResult
from stagedb.search.comparisons import BUILT_IN, region_changes
from stagedb.search.searching import search, spaces_of
from stagedb.search.space import chosen_in, short_words, strategies, strategy_text
from stagedb.search.trials import Trials
from stagedb.store import Store
from stagedb.systems import load_system
from stagedb.timing.op_durations import most_sent, sent_by_classes
from tests.sampling import ALL, rows

H100 = load_system("h100")
LLAMA = dataclasses.replace(load_card("llama3.2-1b"), layers=4, name="llama3.2-1b-4")
LARGE = dataclasses.replace(load_card("llama3-8b"), layers=2, name="llama3-8b-2")


def asked(card: Card, ranks: int = 4, *, words: dict[str, Any], **more: Any) -> SearchRequest:
    own = {"global_batch_size": 4, "seq_len": 2048, "recipe": "torch", **words}
    usual: dict[str, Any] = {"top": 100, "allow": ("strategies",), **more}
    return SearchRequest(card.name, card.digest, ("h100",), ("",), (ranks,), own, **usual)


def run(request: SearchRequest, card: Card) -> SearchResult:
    return search(request, card, [H100], processes=1)


def trials_of(card: Card, recipe: str = "torch") -> Trials:
    return Trials(lambda options: build_graph(card, options), model_sizes(card, FRAMEWORKS[recipe]), H100)


def texts(card: Card, cp: int = 1) -> list[str]:
    return list(strategies(weight_axes(card, GraphOptions()), cp))


@pytest.mark.parametrize(
    ("model", "number", "of_cp"),
    [("llama3-8b", 72, 24), ("gpt2", 72, 24), ("mixtral-8x7b", 24, 8), ("deepseek-v3", 48, 24)],
)
def test_each_set_of_rules_is_there_once(model: str, number: int, of_cp: int) -> None:
    found = texts(load_card(model))
    assert len(found) == number and found[0] == ""
    assert [strategy_text(chosen_in(each)) for each in found] == found
    options = [GraphOptions(sp=True, strategy=each) for each in found]
    for first, second in combinations(options, 2):
        assert (rules(first), kept(first)) != (rules(second), kept(second))
    assert len(texts(load_card(model), cp=2)) == of_cp


def test_short_words() -> None:
    found = {short_words(each) for each in texts(LLAMA)}
    assert len(found) == 72
    assert {"", "ffn gathered", "tokens by batch, attention+ffn copied, head gathered"} <= found
    assert short_words('{"weights":{"ffn":{"ffn":["dp"]}}}') == ""
    assert chosen_in('{"regions":{"ffn":{"batch":["dp"],"seq":["cp"]}}}') == []


def test_on_one_rank_of_tp_there_is_only_the_built_in_one() -> None:
    request = asked(LLAMA, words={"tp": 1})
    assert run(request, LLAMA).size == run(dataclasses.replace(request, allow=()), LLAMA).size
    space = spaces_of(asked(LLAMA, words={}), LLAMA)[0]
    assert all(("strategy" in words) <= (words["tp"] > 1) for words in space.groups())
    fixed = spaces_of(asked(LLAMA, words={"strategy": ""}), LLAMA)[0]
    assert all(words["strategy"] == "" for words in fixed.groups())


def test_steps_and_bytes_are_those_of_the_profile_and_of_the_instance(store: Store) -> None:
    """Strategies of a small space that are plans: a rank's bytes, and those of all ranks, by other ways."""
    words = {"tp": 2, "pp": 2, "dp": 2, "micro_batch_size": 1, "sp": True, "virtual_stages": 2}
    request = asked(LLAMA, 8, words={**words, "schedule": "interleaved", "zero": 1})
    found = run(request, LLAMA)
    assert found.size == 72 and len(found.timed) == 12
    db = Stagedb(store)
    for each in rows(found.timed):
        profile = db.profile(model=LLAMA, system="h100", ranks=8, **each.words)
        assert profile.info.step == each.step, each.words
        by_class = sent_by_classes(program_of(LLAMA, Plan.from_mapping(each.words)).workload)
        assert max(by_class.values()) == each.sent
        ranks = {row["class"]: row["ranks"] for row in db.query(CLASSES, {"instance": profile.instance.id})}
        wires = db.query("wire_bytes_by_axis", {"instance": profile.instance.id})
        assert sum(row["wire_bytes"] for row in wires) == sum(ranks[key] * size for key, size in by_class.items())


CLASSES = "MATCH (:Instance {id: $instance})-[:HAS_CLASS]->(c:RankClass) RETURN c.class AS class, c.ranks AS ranks"


def by_trying_all(request: SearchRequest, card: Card) -> tuple[list[Candidate], dict[str, str]]:
    """The plans that fit, and by their words the reasons of those that are refused."""
    space, trials = spaces_of(request, card)[0], trials_of(card)
    room, found, refused = request.room or H100.accelerator.room or 0, [], {}
    every = [plan for group in space.groups() for cell in space.cells(group) for plan in space.plans(cell)]
    for words in every:
        try:
            plan = Plan.from_mapping(words)
            plan.check(space.sizes)
            outcome, sent = trials.outcome(plan), most_sent(trials.copied(plan).workload)
        except UsageError as error:
            refused[repr(sorted(words.items()))] = str(error)
            continue
        if outcome.peak <= room:
            found.append(Candidate(words, "h100", 4, Fate.TIMED, outcome.step, outcome.peak, sent=sent))
    return sorted(found, key=request.worth_of), refused


@pytest.mark.parametrize("by", [Objective.STEP, Objective.BYTES])
def test_the_best_plans_are_those_of_trying_every_strategy(by: Objective) -> None:
    own = {} if ALL else {"micro_batch_size": 1}
    request = asked(LLAMA, words={"tp": 2, "pp": 1, "recipe": "megatron", **own}, by=by, top=4)
    found, (best, refused) = run(request, LLAMA), by_trying_all(request, LLAMA)
    assert found.covered and found.size == sum(each.plans for each in found.candidates)
    assert [request.worth_of(each) for each in found.winners] == [request.worth_of(each) for each in best[:4]]
    assert sum(each.plans for each in found.candidates if each.fate is Fate.REFUSED) == len(refused)
    reasons = {each.why for each in found.candidates if each.fate is Fate.REFUSED}
    assert reasons <= set(refused.values()) and any(
        "the strategy's regions of attention cut batch" in why for why in reasons
    )


def test_the_fewest_bytes_of_all_plans() -> None:
    allow = ("zero", "recompute", "schedule") if ALL else ("zero", "schedule")
    words = {"tp": 1, "micro_batch_size": 1, "recipe": "megatron"}
    request = asked(LLAMA, words=words, by=Objective.BYTES, allow=allow, top=5)
    found, (best, _) = run(request, LLAMA), by_trying_all(request, LLAMA)
    layouts: dict[str, Candidate] = {}
    for each in best:
        layouts.setdefault(each.layout, each)
    wanted = list(layouts.values())[:5]
    assert [request.worth_of(each) for each in found.winners] == [request.worth_of(each) for each in wanted]
    least = found.winners[0].sent or 0
    for each in found.candidates:
        if each.code == "bytes":
            assert (each.sent or 0) > least and "more in a step than in the best plan" in each.why


LONG = dataclasses.replace(LARGE, max_positions=1 << 20)
TURN = 9 * LARGE.ffn // 4 // 64 * 64
"""The longest sequence, in 64s, of which a layer's activations in the feed-forward are fewer than weights to move."""


@pytest.mark.parametrize("length", [TURN // 4, TURN, TURN + 64, 4 * TURN])
@pytest.mark.parametrize("tp", [2, 4, 8])
def test_bytes_of_a_gathered_feed_forward(tp: int, length: int) -> None:
    """It moves 4·s·h elements of activations, or 9·h·f of gated weights; a rank sends (tp - 1)/tp of these."""
    gathered = next(each for each in texts(LONG) if short_words(each) == "ffn gathered")
    words = {"tp": tp, "sp": True, "seq_len": length, "global_batch_size": 1}
    activations, weights = (
        most_sent(program_of(LONG, Plan.from_mapping({**words, "strategy": text})).workload) for text in ("", gathered)
    )
    more = LONG.layers * (9 * LONG.hidden * LONG.ffn - 4 * length * LONG.hidden)
    assert weights - activations == 2 * more * (tp - 1) // tp
    assert (weights < activations) == (length > TURN)


@pytest.mark.parametrize(("length", "best"), [(TURN - 64, ""), (TURN + 64, "ffn gathered")])
def test_short_sequences_move_activations_and_long_ones_weights(length: int, best: str) -> None:
    words = {"tp": 8, "sp": True, "seq_len": length, "global_batch_size": 1}
    found = run(asked(LONG, 8, words=words, by=Objective.BYTES, room=1 << 60), LONG)
    names = [short_words(each.words.get("strategy", "")) for each in found.timed]
    assert len(names) == 12
    # Weights that are copied need more memory and no gather.
    assert next(name for name in names if "copied" not in name) == best


def test_changes_of_one_region() -> None:
    regions, trials = weight_axes(LLAMA, GraphOptions()), trials_of(LLAMA)
    strategy = next(each for each in texts(LLAMA) if short_words(each) == "ffn+head gathered")
    words = {"tp": 2, "dp": 2, "sp": True, "strategy": strategy, "seq_len": 2048, "global_batch_size": 2}
    peak = trials.outcome(Plan.from_mapping(words)).peak
    found = region_changes(trials, peak, regions, words)
    rows = [(each.part, each.rules, each.instead) for each in found]
    assert rows == [
        ("tokens", BUILT_IN, "by batch"),
        *(("attention", BUILT_IN, kind) for kind in ("gathered", "copied")),
        *(("ffn", "gathered", kind) for kind in (BUILT_IN, "copied")),
        ("head", "gathered", BUILT_IN),
        ("embedding", BUILT_IN, "gathered"),
    ]
    assert all("cut batch into" in each.why and each.step is None for each in found[:3])
    built_in = next(each for each in found if (each.part, each.instead) == ("ffn", BUILT_IN))
    head = next(each for each in texts(LLAMA) if short_words(each) == "head gathered")
    plan = Plan.from_mapping({**words, "strategy": head})
    outcome = trials.outcome(plan)
    assert (built_in.step, built_in.peak) == (outcome.step, outcome.peak)
    assert built_in.sent == most_sent(trials.copied(plan).workload)
    assert {each.why for each in found[3:]} == {"", "does not fit"}
    assert all((each.why == "") == ((each.peak or 0) <= peak) for each in found[3:])
    assert region_changes(trials, None, regions, {**words, "tp": 1}) == ()


def test_a_store_has_strategies_and_bytes(store: Store) -> None:
    db, words = Stagedb(store), {"tp": 2, "global_batch_size": 2, "seq_len": 2048, "micro_batch_size": 1}
    found, again = (db.search(LLAMA, [2], allow=["strategies"], by="bytes", top=3, words=words) for _ in range(2))
    assert (found.new, again.new) == (True, False)
    assert again.result.candidates == found.result.candidates
    assert again.regions == found.regions and len(found.regions.rows) == 7
    assert db.searched(found.id).regions.rows == ()
    wanted = [(each.sent, each.words.get("strategy")) for each in found.result.timed]
    rows = db.query("best_plans", {"search": found.id})
    assert [(row["sent"], row["strategy"]) for row in rows] == wanted
    assert any(strategy for _, strategy in wanted) and all(sent for sent, _ in wanted)
    values = [
        row["value"] for row in db.query("options_that_matter", {"search": found.id}) if row["option"] == "strategy"
    ]
    assert len(values) == len(set(values)) >= 3 and "built-in" in values
    assert db.check() == ()


def test_a_search_has_changes_and_a_command() -> None:
    words = {"tp": 4, "global_batch_size": 4, "seq_len": 16384, "micro_batch_size": 1}
    found = search_words("llama3.2-1b", [4], allow=["strategies"], by="bytes", words=words)
    assert len(found.regions) == 7
    best = found.candidates.rows[0]
    row = dict(zip(found.candidates.columns, best, strict=True))
    assert row["sent"] == found.result.candidates[0].sent
    command = shlex.split(row["command"])
    assert command[command.index("--strategy") + 1] == found.result.candidates[0].words["strategy"]
    assert search_words("llama3.2-1b", [4], allow=["none"], words=words).regions.rows == ()
