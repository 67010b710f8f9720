"""Searches of engines that serve requests: against every number of requests, and a step-by-step run of an engine."""

from collections import deque
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product
from random import Random
from typing import Any

import pytest

from stagedb.api.model_names import card
from stagedb.api.serving_search import SearchedServing, search_serving
from stagedb.errors import UsageError
from stagedb.graphs.graph_identity import model_sizes
from stagedb.graphs.model_graph import build_graph
from stagedb.memory import memory_of, peak_of
from stagedb.plans import GraphOptions, Plan
from stagedb.search.serving import EnginePoint, Role, ServingPlan, engines_on, latencies, most_at_once
from stagedb.search.serving_engines import ServingLoad, layouts, most_within
from stagedb.search.trials import Trials
from stagedb.systems import load_system

PROMPT, OUTPUT = 900, 60
MODEL = "gpt2"

TIMES: dict[str, int] = {}
"""Steps [ns] of plans of the model on one system, by their words."""


@pytest.fixture(scope="module")
def trials() -> Trials:
    model = card(MODEL)
    sizes = model_sizes(model, GraphOptions().framework)
    return Trials(partial(build_graph, model), sizes, load_system("h100"), processes=1)


def searched(ranks: int = 2, **limits: Any) -> SearchedServing:
    return search_serving(MODEL, [ranks], "h100", input_len=PROMPT, output_len=OUTPUT, **limits)


def time_of(trials: Trials, **words: Any) -> int:
    key = repr(words)
    if key not in TIMES:
        TIMES[key] = trials.step(trials.copied(Plan.from_mapping(words)))
    return TIMES[key]


@pytest.mark.parametrize("seed", range(20))
def test_the_most_within_a_limit_is_that_of_a_scan(seed: int) -> None:
    drawn = Random(seed)
    steps = [drawn.choice([0, 1, 1, 2, 50]) for _ in range(drawn.randint(1, 90))]
    values = [0]
    for step in steps:
        values.append(values[-1] + step)
    limit = drawn.randint(-1, values[-1] + 3)
    scanned = max((number for number in range(1, len(values)) if values[number] <= limit), default=0)
    assert most_within(values.__getitem__, limit, len(values) - 1) == scanned


def test_few_numbers_are_computed_on_a_line() -> None:
    asked: list[int] = []

    def value(number: int) -> int:
        asked.append(number)
        return 1000 + 37 * number

    assert most_within(value, 1000 + 37 * 1234 + 5, 4096) == 1234
    assert len(asked) <= 5


@pytest.mark.parametrize(("ranks", "domain"), [(8, 8), (16, 8), (20, 8), (6, 8), (16, 4), (12, 6)])
def test_engines_are_placed_as_a_packing_does(ranks: int, domain: int) -> None:
    """Engines of powers of two: no more have room, and as many as are counted do."""
    domains = [domain] * (ranks // domain) + ([ranks % domain] if ranks % domain else [])

    def room(size: int, left: list[int]) -> int:
        if size > domain:
            return sum(1 for each in left if each == domain) // -(-size // domain)
        return sum(each // size for each in left)

    for first, size in product((1, 2, 4, 8, 16), (1, 2, 4, 8, 16)):
        for count in range(1, room(first, domains) + 1):
            found = engines_on(ranks, domain, size, (count, first))
            best = 0
            for left in _placings(domains, domain, first, count):
                best = max(best, room(size, left))
            assert found <= best
            if domain % max(first, size) == 0 or first > domain or size > domain:
                assert found == best, (first, count, size)


def _placings(domains: list[int], domain: int, size: int, count: int) -> list[list[int]]:
    """What is left of the domains after so many engines of a size, in all ways."""
    if size > domain:
        whole = [each for each in domains if each == domain]
        rest = [each for each in domains if each != domain]
        return [whole[count * -(-size // domain) :] + rest]
    found: set[tuple[int, ...]] = set()
    for each in product(*(range(each // size + 1) for each in domains)):
        if sum(each) == count:
            found.add(tuple(have - size * used for have, used in zip(domains, each, strict=True)))
    return [list(each) for each in found]


def test_a_plan_has_the_steps_of_a_profile(trials: Trials) -> None:
    found = searched(tpot=3_000_000)
    assert {each.kind for each in found.result.plans} == {"aggregated", "disaggregated"}
    for plan in found.result.plans:
        for engines in plan.engines:
            point, tp = engines.point, engines.layout.words["tp"]
            decode = {"tp": tp, "workflow": "decode", "micro_batch_size": point.requests, "cache_len": 900 + 29}
            if point.role is Role.PREFILL:
                words = {"tp": tp, "workflow": "prefill", "seq_len": PROMPT, "micro_batch_size": point.requests}
                assert point.step == time_of(trials, **words)
            elif point.role is Role.DECODE:
                assert point.step == time_of(trials, **decode)
            else:
                assert point.decode == time_of(trials, **decode)
                parts = -(-PROMPT // point.chunk)
                part = -(-PROMPT // parts)
                prompt, others = f"1x{part}+{part * (parts - 1) // 2}", f"{point.requests - 1}x1+{900 + 29}"
                assert point.step == time_of(trials, tp=tp, workflow="mixed", requests=[prompt, others])


@pytest.mark.parametrize(
    "limits",
    [{"tpot": 2_500_000}, {"ttft": 9_000_000}, {"ttft": 8_000_000, "tpot": 3_000_000}, {"room": 2_000_000_000}],
)
def test_the_best_engines_are_those_of_every_number_of_requests(trials: Trials, limits: dict[str, int]) -> None:
    """All layouts, parts of prompts and numbers of requests on one accelerator, computed here one by one."""
    traffic = ServingLoad(PROMPT, OUTPUT, limits.get("ttft"), limits.get("tpot"))
    room = limits.get("room", trials.system.accelerator.room)
    assert room is not None
    best = Fraction(0)
    for parts in (1, 2):
        part = -(-PROMPT // parts)
        for requests in range(1, 61):
            prompt, others = f"1x{part}+{part * (parts - 1) // 2}", f"{requests - 1}x1+929"
            words: dict[str, Any] = {"workflow": "mixed", "requests": [prompt, others]}
            if requests == 1:
                words = {"workflow": "prefill", "seq_len": part, "cache_len": part * (parts - 1) // 2}
            mixed = time_of(trials, **words)
            decode = time_of(trials, workflow="decode", micro_batch_size=requests, cache_len=929)
            steps = parts + OUTPUT - 1
            if requests * parts > steps:
                continue
            mean = Fraction(requests * parts * mixed + (steps - requests * parts) * decode, steps)
            if mean > (traffic.tpot or mean) or parts * mixed > (traffic.ttft or parts * mixed):
                continue
            last = [f"1x{part}+{part * (parts - 1)}", f"{requests - 1}x1+{PROMPT + OUTPUT - 2}"]
            words = {"workflow": "mixed", "requests": last}
            if requests == 1:
                words = {"workflow": "prefill", "seq_len": part, "cache_len": part * (parts - 1)}
            if peak_of(memory_of(trials.copied(Plan.from_mapping(words)))) > room:
                continue
            best = max(best, Fraction(requests * 10**9) / (steps * mean))
    found = searched(1, **limits).result.best_on(1)
    assert found is not None and found.kind == "aggregated"
    assert found.rate == best
    assert found.ttft <= (traffic.ttft or found.ttft) and found.tpot <= (traffic.tpot or found.tpot)


PREFIX, TOKEN = 300, 12 * 2 * 768 * 2
"""Tokens with which all prompts begin, and bytes of a token in the cache."""


@pytest.mark.parametrize("limits", [{"tpot": 2_500_000}, {"ttft": 9_000_000}, {"room": 1_000_000_000}])
def test_engines_behind_a_prefix_are_those_of_every_number_of_requests(trials: Trials, limits: dict[str, int]) -> None:
    """The prefix of all prompts is not computed, and its cache is there once. The most requests are taken."""
    room = limits.get("room", trials.system.accelerator.room)
    assert room is not None
    most: dict[int, Fraction] = {}
    for parts in (1, 2):
        part = -(-(PROMPT - PREFIX) // parts)
        for requests in range(1, 61):
            before = PREFIX + part * (parts - 1) // 2
            words: dict[str, Any] = {"workflow": "mixed", "requests": [f"1x{part}+{before}", f"{requests - 1}x1+929"]}
            if requests == 1:
                words = {"workflow": "prefill", "seq_len": part, "cache_len": before}
            mixed = time_of(trials, **words)
            decode = time_of(trials, workflow="decode", requests=[f"{requests}x1+929"])
            steps = parts + OUTPUT - 1
            if requests * parts > steps:
                continue
            mean = Fraction(requests * parts * mixed + (steps - requests * parts) * decode, steps)
            if mean > limits.get("tpot", mean) or parts * mixed > limits.get("ttft", parts * mixed):
                continue
            before = PREFIX + part * (parts - 1)
            last: dict[str, Any] = {
                "workflow": "mixed",
                "requests": [f"1x{part}+{before}", f"{requests - 1}x1+{PROMPT + OUTPUT - 2}"],
            }
            if requests == 1:
                last = {"workflow": "prefill", "seq_len": part, "cache_len": before}
            peak = peak_of(memory_of(trials.copied(Plan.from_mapping(last)))) - (requests - 1) * PREFIX * TOKEN
            if peak <= room:
                most[parts] = Fraction(requests * 10**9) / (steps * mean)
    found = searched(1, prefix_len=PREFIX, **limits)
    plan = found.result.best_on(1)
    assert plan is not None and plan.kind == "aggregated"
    assert plan.rate == max(most.values())
    whole = searched(1, **limits).result.best_on(1)
    assert whole is not None and whole.rate < plan.rate
    assert any(f"/{PREFIX}" in command for row in found.plans for command in row["commands"])


def test_the_cache_behind_a_prefix_is_sent(trials: Trials) -> None:
    found, whole = (searched(2, prefix_len=each, tpot=3_000_000) for each in (PREFIX, 0))
    tp1 = {layout.ranks: outcome.cache for layout, outcome in found.result.layouts if not outcome.lack}
    every = {layout.ranks: outcome.cache for layout, outcome in whole.result.layouts if not outcome.lack}
    assert tp1[1] == (PROMPT - PREFIX) * TOKEN and every[1] == PROMPT * TOKEN


@pytest.mark.parametrize("prefix", [-1, PROMPT - 1])
def test_a_prefix_leaves_tokens_to_compute(prefix: int) -> None:
    with pytest.raises(UsageError, match="prompts of 900 tokens have a prefix of 0 to 898"):
        searched(1, prefix_len=prefix)


def run(traffic: ServingLoad, point: EnginePoint, finished: int) -> tuple[float, float]:
    """An engine step by step: requests a second, and the mean ns between tokens.

    A request that ends is followed by another one. One prompt at a time is computed, in parts; the others wait.
    """
    parts, clock = traffic.parts(point.chunk), 0
    waiting = deque(range(point.requests))
    left: dict[int, int] = {}
    prompt: tuple[int, int] | None = None
    began: dict[int, int] = {}
    spans: list[float] = []
    ends: list[int] = []
    while len(ends) < finished:
        if prompt is None and waiting:
            prompt = waiting.popleft(), parts
        clock += point.decode if prompt is None else point.step
        for slot in list(left):
            left[slot] -= 1
            if not left[slot]:
                del left[slot]
                ends.append(clock)
                spans.append((clock - began[slot]) / (traffic.output - 1))
                waiting.append(slot)
        if prompt is not None:
            slot, more = prompt
            prompt = (slot, more - 1) if more > 1 else None
            if prompt is None:
                left[slot], began[slot] = traffic.output - 1, clock
    half = len(ends) // 2
    return (len(ends) - half) * 1e9 / (ends[-1] - ends[half - 1]), sum(spans[half:]) / len(spans[half:])


@pytest.mark.parametrize(("requests", "chunk"), [(1, 900), (7, 900), (30, 900), (60, 900), (20, 512), (30, 512)])
def test_rates_are_those_of_an_engine_that_runs(requests: int, chunk: int) -> None:
    traffic = ServingLoad(PROMPT, OUTPUT)
    assert requests <= most_at_once(traffic, chunk)
    point = EnginePoint(Role.BOTH, 0, requests, chunk, 5_000_000, 2_000_000)
    rate, between = run(traffic, point, 60 * requests)
    steps = traffic.parts(chunk) + OUTPUT - 1
    share = Fraction(requests * traffic.parts(chunk), steps)
    mean = float(share * point.step + (1 - share) * point.decode)
    assert rate == pytest.approx(requests * 1e9 / (steps * mean), rel=0.01)
    # The tokens of a request come between prompts of others, not its own.
    assert latencies(traffic, point)[1] >= between * 0.999


def test_caches_are_sent_in_the_time_of_their_bytes() -> None:
    found = search_serving("llama3-8b", [4], "h100", input_len=1000, output_len=100, top=50)
    cache = 2 * 32 * 8 * 128 * 2 * 1000
    plans = [each for each in found.result.plans if each.kind == "disaggregated"]
    assert plans
    for plan in plans:
        first, last = (each.layout.words["tp"] for each in plan.engines)
        most = max(cache // last, cache // first)
        assert plan.sent == _sending(load_system("h100"), most, first)
        assert plan.tpot == -(-(plan.engines[1].point.step * 99 + plan.sent) // 99)


def _sending(system: Any, size: int, away: int) -> int:
    from stagedb.systems.cost_model import Costs, Transfer

    return Costs(system, 4).transfer(Transfer(size, 0, away)).ns


def test_so_many_at_once_are_served() -> None:
    found = searched(4, concurrency=50, tpot=4_000_000)
    for plan in found.result.plans:
        last = plan.engines[-1]
        places = last.count * last.layout.dp
        assert last.point.requests == -(-50 // places)
        assert plan.at_once >= 50


def test_a_pair_is_as_fast_as_its_slower_side() -> None:
    for plan in searched(4, top=20).result.plans:
        if plan.kind == "disaggregated":
            assert plan.rate == min(map(partial(_side, plan), plan.engines))
        assert plan.used <= 4


def _side(plan: ServingPlan, engines: Any) -> Fraction:
    step = engines.point.step
    if engines.role is Role.DECODE:
        step = step * (OUTPUT - 1) + plan.sent
    return Fraction(engines.count * engines.layout.dp * engines.point.requests * 10**9, step)


def test_experts_are_on_the_ranks_of_dp() -> None:
    found = search_serving("olmoe-1b-7b", [4], "h100", input_len=512, output_len=64, tpot=20_000_000)
    words = [layout.words for layout, _ in found.result.layouts]
    assert {"tp": 1, "dp": 4, "ep": 4, "dispatch": "ranks"} in words
    assert {"tp": 2, "dp": 2, "ep": 2, "dispatch": "ranks"} in words
    assert found.result.best_on(4) is not None


def test_ranks_of_tp_have_whole_experts() -> None:
    """The layout of engines whose tensor parallelism and expert parallelism are one group, next to cut experts."""
    found = search_serving("olmoe-1b-7b", [4], "h100", input_len=512, output_len=64, tpot=20_000_000, words={"tp": 2})
    tried = {repr(sorted(layout.words.items())): outcome for layout, outcome in found.result.layouts}
    for dp in (1, 2):
        whole = {"tp": 2, "dp": dp, "ep": 2 * dp, "expert_tp": False}
        outcome = tried[repr(sorted(whole.items()))]
        assert outcome.shortest is not None and not outcome.reason
        plan = {**whole, "workflow": "decode", "micro_batch_size": 1, "cache_len": 512 + 63 // 2}
        assert outcome.shortest == _decode_of("olmoe-1b-7b", plan)
    assert not [layout for layout, _ in found.result.layouts if layout.words["tp"] == 1]


def _decode_of(model: str, words: dict[str, Any]) -> int:
    own = card(model)
    made = Trials(
        partial(build_graph, own), model_sizes(own, GraphOptions().framework), load_system("h100"), processes=1
    )
    return made.step(made.copied(Plan.from_mapping(words)))


@pytest.mark.parametrize("words", [{"dispatch": "ranks"}, {"expert_tp": True}, {"ep": 2}])
def test_given_words_leave_whole_experts_out(words: dict[str, Any]) -> None:
    assert not [each for each in layouts({"A": 2, "E": 8}, 4, words) if each.words.get("expert_tp") is False]
    plain = [each.words for each in layouts({"A": 2, "E": 8}, 4, {}) if each.words.get("expert_tp") is False]
    assert [(each["tp"], each["dp"], each["ep"]) for each in plain] == [(2, 1, 2), (2, 2, 4)]


def test_copies_of_experts_divide_with_them_and_go_one_by_one() -> None:
    sizes = {"A": 1, "E": 12}
    found = [dict(each.words) for each in layouts(sizes, 8, {"redundant_experts": 4})]
    own = {"redundant_experts": 4, "tp": 1, "dispatch": "copies"}
    assert found == [{"redundant_experts": 4, "tp": 1, "dp": 1}, *({**own, "dp": dp, "ep": dp} for dp in (2, 4, 8))]


def test_limits_that_nothing_holds_come_with_what_is_nearest() -> None:
    late = searched(1, tpot=1000)
    assert not late.result.plans and late.lacks == {"tpot": 1}
    assert "a request alone takes" in late.nearest
    small = searched(1, room=1000)
    assert small.lacks == {"memory": 1} and "fits into none" in small.nearest


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: searched(words={"micro_batch_size": 4}), "chooses"),
        (lambda: searched(words={"cache_dtype": "nothing"}), "cache"),
        (lambda: search_serving(MODEL, [2], input_len=1000, output_len=100), "at most 25"),
        (lambda: search_serving("llama3-8b", [1], input_len=8000, output_len=500), "8,192 positions"),
        (lambda: search_serving(MODEL, [2], input_len=10, output_len=1), "2 or more"),
        (lambda: searched(0), "1 or more"),
        (lambda: searched(ttft=0), "more than 0"),
        (lambda: searched(words={"tp": 5}), "no engine of gpt2"),
        (lambda: searched(8, words={"tp": 5}), "heads"),
    ],
)
def test_refusals(call: Callable[[], object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        call()


def test_an_engine_that_no_domains_hold_is_none() -> None:
    """Twelve ranks of tp take two domains of eight; twelve accelerators have one, and half of another one."""
    found = searched(12, concurrency=5)
    assert any(layout.ranks == 12 for layout, _ in found.result.layouts)
    assert all(engines.layout.ranks < 12 for plan in found.result.plans for engines in plan.engines)
    assert found.result.best_on(12) is not None


def test_experts_that_are_given_are_on_whole_groups_of_ranks() -> None:
    words = {"ep": 4}
    found = search_serving("olmoe-1b-7b", [8], "h100", input_len=64, output_len=8, words=words, top=1)
    assert {layout.words["dp"] for layout, _ in found.result.layouts} == {4, 8}


@pytest.mark.parametrize(("drafted", "acceptance"), [(1, 0.9), (3, 0.5), (3, 0.0)])
def test_the_best_engine_that_checks_drafts_is_that_of_every_number_of_requests(
    trials: Trials, drafted: int, acceptance: float
) -> None:
    """Requests get 1 + P + P^2 + … tokens a step. Parts of prompts are steps of their own, next to checks of drafts."""
    tpot, room = 2_000_000, trials.system.accelerator.room
    gained = sum((Fraction(str(acceptance)) ** place for place in range(drafted + 1)), Fraction(0))
    best = Fraction(0)
    for parts in (1, 2):
        part = -(-PROMPT // parts)
        alone = {"workflow": "prefill", "seq_len": part, "cache_len": part * (parts - 1) // 2}
        for requests in range(1, 61):
            draft: dict[str, Any] = {"workflow": "speculative", "seq_len": drafted + 1, "cache_len": 929}
            decode = time_of(trials, **draft, micro_batch_size=requests)
            step = time_of(trials, **alone)
            step += time_of(trials, **draft, micro_batch_size=requests - 1) if requests > 1 else 0
            steps = parts + (OUTPUT - 1) / gained
            if requests * parts > steps:
                continue
            mean = (requests * parts * step + (steps - requests * parts) * decode) / steps
            last = {**draft, "cache_len": PROMPT + OUTPUT - 2 - drafted, "micro_batch_size": requests}
            if mean / gained <= tpot and peak_of(memory_of(trials.copied(Plan.from_mapping(last)))) <= (room or 0):
                best = max(best, Fraction(requests * 10**9) / (steps * mean))
    found = searched(1, tpot=tpot, draft_len=drafted, acceptance=acceptance).result.best_on(1)
    assert found is not None and found.kind == "aggregated"
    assert found.rate == best
    assert found.tpot <= tpot


def test_steps_of_a_plan_check_its_drafts(trials: Trials) -> None:
    found = searched(2, tpot=3_000_000, draft_len=2, acceptance=0.5)
    apart = next(each for each in found.result.plans if each.kind == "disaggregated")
    decode = apart.engines[1].point
    words: dict[str, Any] = {"tp": apart.engines[1].layout.words["tp"], "workflow": "speculative", "seq_len": 3}
    assert decode.step == time_of(trials, **words, micro_batch_size=decode.requests, cache_len=929)
    further = Fraction(OUTPUT - 1) / Fraction(7, 4)
    assert apart.tpot == -(-(decode.step * further + apart.sent) // (OUTPUT - 1))
    commands = [command for row in found.plans for command in row["commands"]]
    assert any("--seq-len 3" in each and "--workflow speculative --" in each for each in commands)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"draft_len": 3}, "drafts need a number of tokens and the share that is accepted"),
        ({"acceptance": 0.5}, "drafts need a number of tokens and the share that is accepted"),
        ({"draft_len": 3, "acceptance": 2}, "acceptance is 2: acceptance takes a probability"),
        ({"draft_len": 3, "acceptance": 0.5, "words": {"draft": "own"}}, "no layers for further tokens"),
    ],
)
def test_drafts_that_no_engine_checks_are_refused(words: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        searched(1, **words)
