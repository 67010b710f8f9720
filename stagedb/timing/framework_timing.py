"""A system as a framework uses it: what runs during what, in which pieces."""

from dataclasses import replace

from stagedb.errors import UsageError
from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.systems import System


def as_used_by(system: System, profile: FrameworkProfile, kernels: str = "") -> System:
    """The system with the overlap of a framework. UsageError if its own file names another one."""
    if system.overlap.framework not in ("", profile.name):
        raise UsageError(
            f"the system {system.name} has overlap.framework {system.overlap.framework}: leave --framework "
            f"{profile.name} out, or the key in the system's file"
        )
    hiding = profile.hides(kernels)
    overlap = replace(
        system.overlap,
        framework=profile.name,
        chunked=hiding.chunked,
        reduced=hiding.reduced,
        gathered=hiding.gathered,
    )
    return replace(system, overlap=overlap)
