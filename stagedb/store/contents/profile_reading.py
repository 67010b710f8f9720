"""The inputs of a stored profile."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import json_list
from stagedb.mentions import call
from stagedb.store import Store
from stagedb.systems import Durations, Measured, parse_system
from stagedb.timing.step_profile import ProfileInputs
from stagedb.timing.whatif import Scaling


@dataclass(frozen=True)
class StoredProfile:
    """A profile of the store: its inputs, its instance, and the ns of its step."""

    inputs: ProfileInputs
    instance: str
    step: int


def read_profile(store: Store, profile: str) -> StoredProfile:
    """A profile of the store by its id. UsageError where there is none."""
    rows = store.read("profile/inputs", profile=profile)
    if not rows:
        raise UsageError(f"no profile {shown(profile)} in the store; {call('ls', 'profiles')} lists them")
    (row,) = rows
    return StoredProfile(inputs_of(row), row["instance"], row["step"])


def inputs_of(row: Mapping[str, Any]) -> ProfileInputs:
    """The inputs of a profile. row: system and durations as JSON, scalings and blocking as lists."""
    return ProfileInputs(
        parse_system(row["system"], "the profile's system"),
        None if row["durations"] is None else _measured(row["durations"]),
        tuple(Scaling.parse(each) for each in row["scalings"]),
        tuple(row["blocking"] or ()),
    )


def _measured(text: str) -> Durations:
    """Rows as `recording` writes them."""
    return Durations(
        Measured(f"row {number} of the profile", Fraction(row.pop("ns")), **row)
        for number, row in enumerate(json_list(text, "durations"), 1)
    )
