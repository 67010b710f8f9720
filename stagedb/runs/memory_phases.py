"""The moments of a step that the memory of a plan has, too: found in the spans of the host around its allocations."""

import numpy as np

from stagedb.runs.joined_ops import MULTIPLYING, step_number
from stagedb.runs.module_paths import ENGINE
from stagedb.runs.rank_spans import RankSpans
from stagedb.runs.rank_trace import BACKWARD, FORWARD, NONE, OPTIMIZER, PHASES, Integers

_COMPILED = "Torch-Compiled Region"
_EVER = 1 << 62


class MemoryPhases:
    """Steps of a rank, and in each its backward: from one of autograd's nodes to the next, with no matmul between them.

    What follows the last backward of a step is its optimizer, and the rest its forward.
    """

    def __init__(self, rank: RankSpans) -> None:
        names, host = [*rank.table], rank.host
        begins, ends, name = (host.column(each) for each in ("start", "end", "name"))
        engine = np.array([each.startswith(ENGINE) for each in names] or [False])[name]
        forward = np.array([each.startswith((*MULTIPLYING, _COMPILED)) for each in names] or [False])[name]
        order = np.argsort(begins[engine], kind="stable")
        start, end = begins[engine][order], np.maximum.accumulate(ends[engine][order])
        starts = np.sort(begins[forward])
        if len(start):
            between = np.searchsorted(starts, start[1:]) - np.searchsorted(starts, end[:-1], side="right")
            first = np.concatenate(([True], between > 0))
            self.begin, self.end = start[first], end[np.append(np.flatnonzero(first)[1:] - 1, len(end) - 1)]
        else:
            self.begin, self.end = start, end
        numbered = ((step_number(each.name), each) for each in rank.annotations)
        self.steps = sorted({(each.start, each.end, number) for number, each in numbered if number is not None})

    def moments(
        self, time: Integers, total: Integers, before: int
    ) -> tuple[int | None, dict[str, tuple[int, int, str]]]:
        """The number of the step with the most bytes, and its moments: place among the events, time in ns, and phase.

        time: of events, ascending. total: bytes after each. before: bytes before the first one. A place of `NONE` is
        the time before all events.
        """
        spans = [(*np.searchsorted(time, each[:2]).tolist(), each) for each in self.steps]
        whole = 0, len(time), (-_EVER, _EVER, None)
        chosen = [each for each in spans if each[1] > each[0]] or [whole]
        first, last, (begin, end, number) = max(
            chosen, key=lambda each: (int(total[each[0] : each[1]].max()), -each[0])
        )
        stretches = [place for place, at in enumerate(self.begin.tolist()) if begin <= at < end]
        phase = np.full(last - first, FORWARD)
        found = {"start": (first - 1, int(time[first]) if number is None else begin, FORWARD)}
        if stretches:
            for place in stretches:
                phase[self._inside(time[first:last], place)] = BACKWARD
            forward_end, backward_end = int(self.begin[stretches[-1]]), int(self.end[stretches[-1]])
            phase[time[first:last] > backward_end] = OPTIMIZER
            found["forward_end"] = (int(np.searchsorted(time, forward_end)) - 1, forward_end, FORWARD)
            after = int(np.searchsorted(time, backward_end, side="right")) - 1
            found["backward_end"] = (after, backward_end, BACKWARD)
        found["step_end"] = (last - 1, int(time[last - 1]) if number is None else end, int(phase[-1]))
        for each in (FORWARD, BACKWARD, OPTIMIZER) if stretches else (FORWARD,):
            mine = first + np.flatnonzero(phase == each)
            if len(mine):
                at = int(mine[total[mine].argmax()])
                found[f"{PHASES[each]}_peak"] = (at, int(time[at]), each)
        at = first + int(total[first:last].argmax())
        found["peak"] = (at, int(time[at]), int(phase[at - first]))
        return number, {name: (max(place, NONE), ns, PHASES[of]) for name, (place, ns, of) in found.items()}

    def _inside(self, time: Integers, place: int) -> slice:
        begin, end = np.searchsorted(time, self.begin[place]), np.searchsorted(time, self.end[place], side="right")
        return slice(int(begin), int(end))
