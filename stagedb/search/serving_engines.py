"""Engines that serve a model: layouts of its ranks, how long their steps take, and how many requests they hold."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import Any

from stagedb.errors import UsageError
from stagedb.memory import Category, memory_of, peak_of
from stagedb.mentions import Word
from stagedb.plans import Plan
from stagedb.plans.plan_fields import gained_tokens
from stagedb.search.space import divisors
from stagedb.search.trials import Trials

CHUNKS = (512, 1024, 2048, 4096, 8192)
"""Tokens of a prompt that a step computes at most, of which a search takes the best."""

MOST_PROMPTS = 64
"""Prompts of a rank of dp in one step of prefill, at most."""

CHOSEN = (
    *("workflow", "requests", "micro_batch_size", "global_batch_size", "seq_len", "cache_len"),
    *("overlap_experts", "cp", "zero", "hsdp", "recompute", "schedule", "virtual_stages", "draft", "acceptance"),
)
"""Words of a plan that the search of a serving plan chooses, or that a step of serving does not have."""


@dataclass(frozen=True)
class ServingLoad:
    """Requests that are alike, and what they are promised.

    prompt: tokens of a request. output: tokens that it is given, 2 or more. ttft: ns to the first one at most. tpot:
    ns for each further one at most, in the mean. concurrency: requests that are served at the same time; None: as many
    as give most tokens. Limits that are None do not count. drafted: tokens of a draft that a step checks for each
    request; 0 for steps of one token. acceptance: the probability that one of them is accepted if those before it are.
    draft: where drafts come from, as a word of a plan. prefix: tokens with which all prompts begin; they are in the
    cache of each engine once, and are not computed.
    """

    prompt: int
    output: int
    ttft: int | None = None
    tpot: int | None = None
    concurrency: int | None = None
    drafted: int = 0
    acceptance: float = 0.0
    draft: str = "usual"
    prefix: int = 0

    @property
    def computed(self) -> int:
        """Number of tokens of a prompt that are computed: those behind the shared prefix."""
        return self.prompt - self.prefix

    @property
    def further(self) -> Fraction:
        """Steps in which a request is given all but its first token, in the mean."""
        return (self.output - 1) / gained_tokens(self.acceptance, self.drafted)

    @property
    def drafts(self) -> dict[str, Any]:
        """The words of a graph in which drafts are checked; none without."""
        return {"workflow": "speculative", "draft": self.draft} if self.drafted else {}

    def a_token(self, step: Fraction | int) -> int:
        """The ns between two tokens of a request, rounded up, if a step takes `step` ns."""
        return ceil(step * self.further / (self.output - 1))

    @property
    def context(self) -> int:
        """Number of tokens in the cache of a request before a step of decode, in the mean of its steps, rounded up."""
        return self.prompt + (self.output - 1) // 2

    @property
    def longest(self) -> int:
        """Number of tokens in the cache of a request before its last step."""
        return self.prompt + self.output - 2

    def parts(self, chunk: int) -> int:
        """The number of steps in which a prompt is computed, in equal parts. chunk: tokens of a part at most."""
        return -(-self.computed // chunk)


@dataclass(frozen=True)
class EngineLayout:
    """How an engine divides the model.

    words: those of its plan. ranks: accelerators of one engine.
    """

    words: Mapping[str, Any]
    ranks: int

    @property
    def dp(self) -> int:
        """Number of ranks that have requests of their own."""
        return int(self.words["dp"])

    @property
    def sharing(self) -> int:
        """Number of ranks that share a request: of tensor parallelism, on all stages."""
        return self.ranks // self.dp


def layouts(sizes: Mapping[str, int], ranks: int, words: Mapping[str, Any]) -> Iterator[EngineLayout]:
    """The layouts of engines with at most so many ranks.

    sizes: of the model. words: those that all plans have. Engines of dense models have no dp, as each rank of it would
    be an engine of its own. With experts the ranks of dp have some of them each, cut by tp, and a token is sent once to
    each rank that has one of its experts; or the ranks of dp and tp have whole ones, and a token is sent once for each
    choice. Raises UsageError for words that the search chooses itself.
    """
    for word in words:
        if word in CHOSEN:
            raise UsageError(
                f"a search of serving chooses {Word(word)}, or has no use for it: leave it out of {Word('fix')}"
            )
    experts = sizes["E"] + words.get("redundant_experts", 0) if "E" in sizes else 0
    pp = words.get("pp", 1)
    for tp in _given_or(words, "tp", divisors(sizes["A"])):
        for dp in _given_or(words, "dp", range(1, ranks // (tp * pp) + 1) if experts else [1]):
            world = tp * dp * pp
            if world > ranks or dp % words.get("ep", 1):
                continue
            given = "ep" in words or "expert_tp" in words
            if dp == 1 or given or not experts:
                yield EngineLayout({**words, "tp": tp, "dp": dp}, world)
            elif experts % dp == 0:
                usual = "copies" if words.get("redundant_experts") else "ranks"
                own = {"ep": dp, "dispatch": words.get("dispatch", usual)}
                yield EngineLayout({**words, "tp": tp, "dp": dp, **own}, world)
            if not given and tp > 1 and experts and experts % (tp * dp) == 0 and words.get("dispatch") in _BY_CHOICE:
                yield EngineLayout({**words, "tp": tp, "dp": dp, "ep": tp * dp, "expert_tp": False}, world)


_BY_CHOICE = (None, "copies")
"""Dispatches that send a token once for each choice, which ranks of tp with whole experts need."""


def _given_or(words: Mapping[str, Any], word: str, values: Sequence[int]) -> Sequence[int]:
    return [words[word]] if word in words else values


@dataclass(frozen=True)
class StepWords:
    """The words of the plans of an engine's steps."""

    layout: EngineLayout
    traffic: ServingLoad

    def prefill(self, prompts: int) -> dict[str, Any]:
        """The words of a step that computes whole prompts. prompts: on each rank of dp."""
        return self._alike(prompts, self.traffic.computed, self.traffic.prefix, workflow="prefill")

    def decode(self, requests: int) -> dict[str, Any]:
        """The words of a step of decode, with requests at their mean length. requests: on each rank of dp."""
        return self._decode(requests, self.traffic.context)

    def last_decode(self, requests: int) -> dict[str, Any]:
        """The words of a step of decode with each request at its last token, and without room for tokens behind it.

        requests: on each rank of dp.
        """
        return self._decode(requests, max(self.traffic.longest - self.traffic.drafted, 1))

    def undrafted(self, requests: int) -> dict[str, Any]:
        """The words of a decode in which nothing is drafted, with each request at its last token. requests: at once."""
        return self._alike(requests, 1, self.traffic.longest, workflow="decode")

    def _decode(self, requests: int, cached: int) -> dict[str, Any]:
        traffic = self.traffic
        if not traffic.drafted:
            return self._alike(requests, 1, cached, workflow="decode")
        words = {"workflow": "speculative", "draft": traffic.draft, "acceptance": traffic.acceptance}
        return self._alike(requests, traffic.drafted + 1, cached, **words)

    def _alike(self, requests: int, new: int, cached: int, **words: Any) -> dict[str, Any]:
        """A step with requests of one length: a list where they share a prefix. new, cached: tokens of each."""
        if self.traffic.prefix:
            return self._of(requests=[self._listed(requests, new, cached)], **words)
        lengths = {"seq_len": new} if new > 1 or not cached else {}
        return self._of(micro_batch_size=requests, **lengths, **({"cache_len": cached} if cached else {}), **words)

    def _listed(self, requests: int, new: int, cached: int) -> str:
        """Requests of a list, which share the prefix."""
        prefix = self.traffic.prefix
        return f"{requests}x{new}+{cached}/{prefix}" if prefix else f"{requests}x{new}+{cached}"

    def mixed(self, requests: int, chunk: int) -> dict[str, Any]:
        """The words of a step in which one request has a part of its prompt computed, and the others a token each.

        requests: on each rank of dp, that one included. chunk: tokens of the part at most. The parts before it are in
        the cache: half of all others, in the mean.
        """
        parts, new = self._part(chunk)
        return self._mix(requests, new, new * (parts - 1) // 2, self.traffic.context)

    def part(self, chunk: int) -> dict[str, Any]:
        """A step that has nothing but the part of a prompt.

        chunk: tokens of the prompt that a step computes at most.
        """
        return self.mixed(1, chunk)

    def last_mixed(self, requests: int, chunk: int) -> dict[str, Any]:
        """The words of a step that computes the last part of one prompt, while all other requests are at their last
        token.

        The caches are fullest then. requests: at once, that of the prompt included. chunk: tokens of a prompt that a
        step computes at most.
        """
        parts, new = self._part(chunk)
        return self._mix(requests, new, new * (parts - 1), self.traffic.longest)

    def _part(self, chunk: int) -> tuple[int, int]:
        parts = self.traffic.parts(chunk)
        return parts, -(-self.traffic.computed // parts)

    def _mix(self, requests: int, new: int, before: int, context: int) -> dict[str, Any]:
        before += self.traffic.prefix
        if requests == 1 and self.traffic.prefix:
            return self._alike(1, new, before, workflow="prefill")
        if requests == 1:
            return self._of(workflow="prefill", micro_batch_size=1, seq_len=new, cache_len=before)
        return self._of(
            workflow="mixed", requests=[self._listed(1, new, before), self._listed(requests - 1, 1, context)]
        )

    def _of(self, **own: Any) -> dict[str, Any]:
        return {**self.layout.words, **own}


@dataclass
class EngineSteps:
    """The steps of one engine, timed as a profile does it. Each is timed once.

    trials: of the model on its system. words: of the steps. check_tp: raises UsageError for a degree that the card does
    not have.
    """

    trials: Trials
    words: StepWords
    check_tp: Callable[[int], None]
    _times: dict[str, int] = field(default_factory=dict)

    def time(self, words: Mapping[str, Any]) -> int:
        """The ns of a step.

        words: of the step's plan. UsageError for a plan that does not suit the model or the system.
        """
        key = repr(sorted(words.items()))
        if key not in self._times:
            self._times[key] = self.trials.step(self.trials.copied(self._plan(words)))
        return self._times[key]

    def mixed_time(self, requests: int, chunk: int) -> tuple[int, bool]:
        """The ns of a step with a part of a prompt, and whether its two halves run apart: the part, then the tokens.

        That is shorter where the tokens of a mixed step compute more than those of a decode: latent attention makes
        keys and values of all positions there. Steps that check drafts have no prompts. requests: at once. chunk:
        tokens of the prompt.
        """
        if requests == 1:
            return self.time(self.words.part(chunk)), False
        apart = self.time(self.words.part(chunk)) + self.time(self.words.decode(requests - 1))
        if self.words.traffic.drafted:
            return apart, True
        mixed = self.time(self.words.mixed(requests, chunk))
        return min(mixed, apart), apart < mixed

    def last_peak(self, requests: int, chunk: int) -> int:
        """The bytes of the fullest rank while the last part of a prompt is computed.

        With drafts: the bytes of such a step without drafts, and what the layers that draft hold in a decode. requests:
        at once. chunk: tokens of a prompt that a step computes at most.
        """
        peak = self.peak(self.words.last_mixed(requests, chunk))
        if not self.words.traffic.drafted:
            return peak
        checked, plain = (
            self.peak(each) for each in (self.words.last_decode(requests), self.words.undrafted(requests))
        )
        return peak + max(checked - plain, 0)

    def peak(self, words: Mapping[str, Any]) -> int:
        """The bytes of the fullest rank in a step. words: of the step's plan."""
        return peak_of(memory_of(self.trials.copied(self._plan(words))))

    @cached_property
    def cache(self) -> int:
        """Bytes of the cache of one prompt, without a shared prefix, on the rank that has most of it."""
        one = self._caches(1)
        if not self.words.traffic.prefix:
            return max(one)
        return max(two - each for two, each in zip(self._caches(2), one, strict=True))

    def _caches(self, prompts: int) -> list[int]:
        """By rank class, the bytes of the caches of prompts that share the prefix."""
        found = memory_of(self.trials.copied(self._plan(self.words.prefill(prompts))))
        return [each.usage.before().get(Category.CACHE, 0) for each in found]

    def _plan(self, words: Mapping[str, Any]) -> Plan:
        plan = Plan.from_mapping(words)
        self.check_tp(plan.tp)
        plan.check(self.trials.sizes)
        return plan


def most_within(value: Callable[[int], int], limit: int | None, most: int) -> int:
    """The largest number from 1 to `most` whose value is at most the limit; 0 if that of 1 is above it.

    value: of a number; it does not fall, and is nearly a line, so that few are computed. limit: None for none.
    """
    if most < 1 or limit is None:
        return max(most, 0)
    low, high = 1, most
    below, above = value(low), value(high)
    if below > limit:
        return 0
    if above <= limit:
        return high
    step = 0
    while high - low > 1:
        if not step:
            at = low + (limit - below) * (high - low) // max(above - below, 1)
        else:
            at = low + step if step > 0 else high + step
        at = min(max(at, low + 1), high - 1)
        found = value(at)
        # From a guess on, steps of 1, 2, 4 and so on until the limit is passed; then the next guess.
        if found <= limit:
            low, below, step = at, found, 2 * step if step > 0 else (0 if step else 1)
        else:
            high, above, step = at, found, 2 * step if step < 0 else (0 if step else -1)
    return low
