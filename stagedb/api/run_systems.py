"""The system that a run was recorded on, by the names of its accelerators, next to the one that a plan is timed on."""

import re

from stagedb.api.results import RunInfo
from stagedb.mentions import OPTIONS, call
from stagedb.systems import system_names

_WORD = re.compile(r"[a-z0-9]+")


def preset_of(run: RunInfo) -> str | None:
    """The preset whose words are among those of a run's accelerators, the one with most; None without one."""
    words = _words(run)
    found = [each for each in system_names() if words.issuperset(each.split("-"))]
    return max(found, key=lambda each: each.count("-"), default=None)


def other_system(run: RunInfo, instance: str, system: str) -> str:
    """A sentence on a run that was recorded on other processors than its plan is timed on, with what to do.

    instance: id of the plan's instance. system: name of the system of its profile. Empty if both are the same, and
    where names do not show it: systems of one's own may have any, and not every recording has those of its devices.
    """
    if system not in system_names():
        return ""
    on_cpus = run.tool == "kineto" and not run.devices
    # A device whose name has no number, such as `GPU`, may be any.
    named = any(letter.isdigit() for name in run.devices for letter in name)
    if not on_cpus and (not named or system.split("-")[0] in _words(run)):
        return ""
    better = None if on_cpus else preset_of(run)
    ways = [] if better is None else [f"{OPTIONS.call(call('profile', instance[:12], system=better))} times it there"]
    ways.append(f"{OPTIONS.call(call('systems', 'calibrate', run.id[:12]))} fits a system to runs like it")
    recorded = "CPUs" if on_cpus else ", ".join(run.devices)
    return (
        f"the plan is timed on {system}, and the run was recorded on {recorded}: their times differ by that, too; "
        f"{', and '.join(ways)}"
    )


def _words(run: RunInfo) -> set[str]:
    return set(_WORD.findall(" ".join(run.devices).lower()))
