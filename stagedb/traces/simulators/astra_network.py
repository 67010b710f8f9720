"""The network that ASTRA-sim simulates for a job, so that its times mean what those of the cost model mean.

A level has one bandwidth and no efficiencies, its collectives one implementation, and all collectives one number of
chunks. Each is chosen from what the job communicates. docs/simulators.md has the rules of the simulator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from stagedb.collectives import KINDS, SIMULATED, exchanges
from stagedb.systems.astra_sim import at_once
from stagedb.systems.cost_model import Costs, Transfer
from stagedb.systems.group_placement import DimensionSpan, Placement, Spread
from stagedb.systems.system import ASTRA_SIM
from stagedb.traces.simulators.network_levels import Level, levels
from stagedb.traces.simulators.simulator import MESSAGE, SimulatedJob, Traffic

SPLITS = (1, 2, 3, 4, 6, 8)
"""Numbers of chunks to choose from."""

_LARGE = 1 << 40


@dataclass(frozen=True)
class AstraNetwork:
    """The levels, and how collectives use them.

    rates: GB/s of one link of each level. implementations: by collective, one a level; a single one for several levels
    is for groups that are smaller than the world. splits: chunks of a collective.
    """

    levels: tuple[Level, ...]
    rates: tuple[Fraction, ...]
    implementations: Mapping[str, tuple[str, ...]]
    splits: int


@dataclass(frozen=True)
class _OnLevel:
    """One pass of a collective, or a message, on one level.

    at: the level. members: of a row there. sent: bytes that follow each other over one link in the simulator. ns: how
    long the cost model sends them, without latencies.
    """

    at: int
    members: int
    sent: Fraction
    ns: Fraction


@dataclass(frozen=True)
class _Load:
    """Traffic with its parts, innermost first. placement: of its group; None for a message."""

    row: Traffic
    parts: tuple[_OnLevel, ...]
    placement: Placement | None = None

    @property
    def members(self) -> int:
        """Number of ranks that take part."""
        return 2 if self.placement is None else self.placement.members

    @property
    def passes(self) -> int:
        """How often the buffer goes around."""
        return 1 if self.row.kind == MESSAGE else KINDS[self.row.kind].passes


def astra_network(job: SimulatedJob) -> AstraNetwork:
    """The simulated network of a job. UsageError if the system has no place for it."""
    laid = levels(job.degrees, job.system)
    # Each member sends to all others at once, each over a link of its own. With several levels the simulator runs the
    # collectives of smaller groups as rings in any case, so that one link gets the bandwidth of all links together.
    direct = len(laid) == 1 and laid[0].links.kind == "fully-connected"
    costs = Costs(job.system, job.world)
    names = dict.fromkeys(row.group for row in job.traffic if row.kind != MESSAGE)
    spreads = {group: Spread(costs.network, costs.placement(tuple(sorted(job.groups[group])))) for group in names}
    loads = []
    for row in job.traffic:
        if row.kind == MESSAGE:
            loads.append(_Load(row, _message(row, costs, laid)))
        else:
            spread = spreads[row.group]
            loads.append(_Load(row, _collective(row, spread, laid, direct=direct), spread.placement))
    rates = tuple(_rate(at, level, loads, direct=direct) for at, level in enumerate(laid))
    kinds = _implementations(len(laid), job.world, loads, direct=direct)
    return AstraNetwork(laid, rates, kinds, _splits(job, laid, rates, costs, loads))


def _collective(row: Traffic, spread: Spread, laid: Sequence[Level], *, direct: bool) -> tuple[_OnLevel, ...]:
    """A collective on the levels of the dimensions that its group spans."""
    places = {level.links.name: at for at, level in enumerate(laid)}
    kind = KINDS[row.kind]
    buffer = part_bytes = Fraction(kind.whole(row.bytes, spread.members))
    levels = []
    for each in spread.spans:
        at, n = places.get(spread.dimension(each).name), each.members
        sent = Fraction(n - 1, n) * part_bytes
        carried = sent
        if kind.exchanges and spread.dimension(each).kind == "ring":
            # Along a ring of links each byte takes several, which the simulator does not charge.
            carried = Fraction(n * n // 4, n) * part_bytes
        if at is not None:
            ns = carried * _pace(spread, each, buffer, part_bytes)
            levels.append(_OnLevel(at, n, sent / (n - 1) if direct else sent, ns))
        if not kind.exchanges:
            part_bytes /= n
    return tuple(levels)


def _pace(spread: Spread, each: DimensionSpan, buffer: Fraction, whole: Fraction) -> Fraction:
    """ns a byte of a member along a dimension. buffer: bytes of the collective; whole: those that are left there."""
    dimension = spread.dimension(each)
    if not dimension.simulated:
        return spread.pace(each, whole)
    links = dimension.places - 1 if at_once(spread.network) else 1
    return dimension.pace(buffer) * links / max(each.members - 1 if links > 1 else 1, 1)


def _message(row: Traffic, costs: Costs, laid: Sequence[Level]) -> tuple[_OnLevel, ...]:
    """A message on the level that it crosses."""
    source, target = row.ends
    # So many bytes that rounding to whole ns does not count.
    large, empty = (costs.transfer(Transfer(size, source, target)) for size in (_LARGE, 0))
    dimension = next(each for each in costs.network if each.name == large.dimension)
    slower = round((large.ns - empty.ns) / (_LARGE * dimension.pace(_LARGE)))  # a message may use one link of several
    ns = row.bytes * slower * dimension.pace(row.bytes)
    at = next((at for at, level in enumerate(laid) if level.links.name == dimension.name), None)
    return () if at is None else (_OnLevel(at, 2, Fraction(row.bytes), ns),)


def _rate(at: int, level: Level, loads: Sequence[_Load], *, direct: bool) -> Fraction:
    """GB/s of one link: the mean of all that the level carries, with the efficiencies for messages of these sizes."""
    parts = [(part, load.row.count * load.passes) for load in loads for part in load.parts if part.at == at]
    sent = sum((part.sent * times for part, times in parts), Fraction(0))
    ns = sum((part.ns * times for part, times in parts), Fraction(0))
    if sent and ns:
        return sent / ns
    links = level.links
    if links.kind != "fully-connected":
        return Fraction(links.bandwidth)
    return Fraction(links.bandwidth) * (1 if direct else level.size - 1) / max(links.places - 1, 1)


def _implementations(count: int, world: int, loads: Sequence[_Load], *, direct: bool) -> dict[str, tuple[str, ...]]:
    """Rings, and direct where each member has a link to each other one."""
    reductions = ("direct" if direct else "ring",) * count
    # One message after the other, as over one link.
    exchange = ("direct" if direct else "direct1",) * count
    exchanging = [load for load in loads if exchanges(load.row.kind)]
    if count > 1 and exchanging and all(load.members < world for load in exchanging):
        # With one implementation for each level the simulator would pass their bytes on around a ring.
        exchange = ("oneDirect1",)
    return {name: exchange if kind.exchanges else reductions for name, kind in SIMULATED.items()}


def _splits(
    job: SimulatedJob, laid: Sequence[Level], rates: Sequence[Fraction], costs: Costs, loads: Sequence[_Load]
) -> int:
    """The number of chunks with which all collectives together take about as long as in the cost model.

    Chunks of a collective of all ranks use the levels at the same time, and each chunk takes every latency. In smaller
    groups, and on one level, they follow each other.
    """
    if job.system.collectives.model == ASTRA_SIM:
        return job.system.collectives.parts
    collectives = [(load, load.placement) for load in loads if load.placement is not None]
    if len(laid) == 1 or all(load.members < job.world for load, _ in collectives):
        return 1
    wanted = sum(
        load.row.count * costs.placed(load.row.kind, load.row.bytes, placement).ns for load, placement in collectives
    )

    def off(splits: int) -> Fraction:
        times = (load.row.count * load.passes * _time(load, splits, laid, rates, job.world) for load, _ in collectives)
        return abs(sum(times, Fraction(0)) - wanted)

    return min(SPLITS, key=off)


def _time(load: _Load, splits: int, laid: Sequence[Level], rates: Sequence[Fraction], world: int) -> Fraction:
    """ns of one pass in `splits` chunks, on several levels."""
    chunk = max(load.row.bytes // splits, 1)
    chunks = -(-load.row.bytes // chunk)  # the simulator rounds a rest up to a whole chunk
    steps = [
        (part.members - 1) * laid[part.at].links.latency + part.sent * chunk / load.row.bytes / rates[part.at]
        for part in load.parts
    ]
    if load.members < world:
        return chunks * sum(steps, Fraction(0))
    return sum(steps, Fraction(0)) + (chunks - 1) * max(steps, default=Fraction(0))
