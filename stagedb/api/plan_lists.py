"""Instances and profiles as rows with the words of their plans and their figures, filtered and sorted.

A list is read with as many statements for a thousand rows as for one. What takes time for each plan, its text, is
made for the rows that need it.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Self

from stagedb.api import catalog, listing, plan_texts
from stagedb.api.results import ProfileInfo, Rows
from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.files.stored_values import DamagedError, json_mapping
from stagedb.mentions import Word
from stagedb.plans import typed_words
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.store import Store, user_of, warn_of
from stagedb.store.naming import spaces

# Finding: the profiled instances of a model under a plan, the most tokens a second an accelerator first.

COLUMNS = (
    *("instance", "name", "model", "plan", "ranks", "profile", "system", "step", "tokens_per_second"),
    "tokens_per_accelerator",
    "mfu",
    *("memory", "room", "fits", "measured_time", "made_by", "created"),
)
HINTED = 3
"""Profiles that a hint names."""


def find(store: Store, model: str | None, system: str | None, words: Mapping[str, Any], fits: bool, limit: int) -> Rows:
    """Profiles with their instances, as rows with the columns of `COLUMNS`. The arguments are those of `Stagedb.find`.

    Raises UsageError for a model or a system that the store has nothing of.
    """
    if limit < 1:
        raise UsageError(f"{Word('limit', limit)} is not possible: it is at least 1")
    wanted = properties(words)
    asked: dict[str, Any] = {"words": wanted, "fits": fits, "limit": limit}
    if model is not None:
        rows = store.read("team/find_of_model", model=model, system=system, **asked)
    elif system is not None:
        rows = store.read("team/find_on_system", system=system, **asked)
    else:
        rows = store.read("team/find_under_plan", **asked)
    if not rows:
        listing.check_names(store, model, system)
    unknown = [row for row in rows if row["memory"] is None]
    if fits:
        unknown = store.read("team/unknown_memory", model=model, system=system, words=wanted)
    names, own = catalog.names_by_id(store) if rows else {}, spaces(store)
    found = [_row(row, catalog.called(names.get(row["instance"], ()), row["instance_name"], own)) for row in rows]
    return Rows(COLUMNS, tuple(tuple(row[name] for name in COLUMNS) for row in found), hints=_hints(unknown, fits))


def properties(words: Mapping[str, Any]) -> dict[str, Any]:
    """The words of a plan as properties of `Instance` nodes. Raises UsageError for a word that names a file."""
    found = {}
    for word, value in words.items():
        if PLAN_WORDS[word].about.file and isinstance(value, str) and Path(value).suffix:
            raise UsageError(f"{Word(word)} {shown(value)} is a file, and stored plans have its content: leave it out")
        if isinstance(value, tuple) and any(isinstance(each, Fraction) for each in value):
            raise UsageError(
                f"{Word(word)} has shares, and stored plans have the whole numbers of choices that follow from them: "
                "give those, or leave it out"
            )
        found["world" if word == "ranks" else word] = list(value) if isinstance(value, tuple) else value
    return found


def _row(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    memory, room = row["memory"], row["room"]
    return {
        **row,
        "name": name,
        "profile": row["id"],
        "plan": plan_texts.describe(json_mapping(row["plan"], "plan")),
        "fits": None if memory is None else room is None or memory <= room,
        "made_by": user_of(row["builder"]),
        "created": catalog.time_of(row["created"]),
    }


def _hints(unknown: list[dict[str, Any]], fits: bool) -> tuple[str, ...]:
    if not unknown:
        return ()
    size = catalog.SHORT_ID
    ways = [f"stagedb profile {row['instance'][:size]} --system {row['system']}" for row in unknown[:HINTED]]
    more = f" and {len(unknown) - HINTED} more" if len(unknown) > HINTED else ""
    which = "1 profile" if len(unknown) == 1 else f"{len(unknown)} profiles"
    left = " and left out" if fits else ""
    return (
        f"the memory of {which} is unknown{left}, as an older stagedb made them. The command that made it adds it: "
        f"{'; '.join(f'`{way}`' for way in ways)}{more}",
    )


Kind = Literal["instances", "profiles"]

WORDS = (
    *("tp", "pp", "cp", "ep", "dp", "micro_batch_size", "schedule", "zero", "recompute", "global_batch_size"),
    "seq_len",
)
"""Words of plans that rows have."""

DEGREES = WORDS[:5]
"""The words that short texts of plans have."""

SORTS: Mapping[str, bool] = {
    "created": True,
    "name": False,
    "model": False,
    "system": False,
    "made_by": False,
    "tags": True,
    "ranks": False,
    "step": False,
    "tokens": True,
    "mfu": True,
    "memory": False,
    **dict.fromkeys(WORDS, False),
}
"""What rows can be sorted by, and whether the largest usually comes first."""

STAR = "star"
"""The tag that pages show as a star."""

_DESCRIBED = 4_096
"""Plans whose texts are kept: a search for a text asks for those of all rows, and the next one again."""


@dataclass(frozen=True)
class ListedPlan:
    """An instance with the figures of its newest profile, or a profile with the plan of its instance.

    plan: its words as JSON; words: those of `WORDS`. instance, profile: ids; an instance may have no profile. system,
    timing, scaled, step [ns], mfu, tokens (a second and accelerator), memory and room [bytes]: of the profile. An
    instance without one has the memory that was computed for it. made_by: the user.
    """

    id: str
    name: str | None
    model: str
    plan: str
    words: Mapping[str, Any]
    ranks: int
    instance: str
    instance_name: str
    profile: str | None
    system: str | None
    timing: str | None
    scaled: bool
    step: int | None
    mfu: float | None
    tokens: float | None
    memory: int | None
    room: int | None
    created: str
    made_by: str | None
    names: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def fits(self) -> bool | None:
        """Whether the fullest rank fits into the accelerator's memory; None if the memory is unknown."""
        return None if self.memory is None else self.room is None or self.memory <= self.room

    @property
    def star(self) -> bool:
        """Whether somebody gave the instance or the profile a star."""
        return STAR in self.tags

    def value(self, column: str) -> Any:
        """The value of a column of `SORTS`, by its name; None if the row has none."""
        return self.words[column] if column in self.words else getattr(self, column)

    def described(self, without: Iterable[str] = ()) -> str:
        """The plan in short; empty for a plan that cannot be read. without: names of words that are left out."""
        return _described(self.plan, tuple(sorted(without)))


@dataclass(frozen=True)
class PlanFilter:
    """The conditions by which rows of a list are chosen; None: no condition.

    text: each of its words is in some text of the row. model, system, tag, made_by: values that the row has. fits: only
    plans whose fullest rank fits into an accelerator.
    """

    text: str | None = None
    model: str | None = None
    system: str | None = None
    tag: str | None = None
    made_by: str | None = None
    fits: bool = False


def plans(store: Store, kind: Kind, words: Mapping[str, Any], system: str | None = None) -> list[ListedPlan]:
    """The complete instances or profiles whose plans have these words: the caller's own first, the newest first.

    words: as in `Stagedb.find`. system: of the profiles whose figures instances have; None: any. Figures of an instance
    are of its newest profile without scaled durations. Damaged rows are left out with a warning. Raises UsageError for
    words that no plan has.
    """
    content = _ReadPlans.read(store, words)
    return content.profile_rows() if kind == "profiles" else content.instance_rows(store, system)


def both(store: Store, words: Mapping[str, Any]) -> tuple[list[ListedPlan], list[ListedPlan]]:
    """The rows of `plans` for instances and for profiles, read once.

    words: of the plans that are listed, by which they are chosen.
    """
    content = _ReadPlans.read(store, words)
    return content.instance_rows(store, None), content.profile_rows()


@dataclass(frozen=True)
class _ReadPlans:
    """What is read for a list. rows: of `catalog/plans`. made: when each profile was [ms], more exact than its text."""

    marks: catalog.UserMarks
    rows: Sequence[Mapping[str, Any]]
    profiles: Sequence[ProfileInfo]
    made: Mapping[str, int]

    @classmethod
    def read(cls, store: Store, words: Mapping[str, Any]) -> Self:
        marks = catalog.user_marks(store)
        rows = store.read_sound("catalog/plans", words=properties(typed_words(words)))
        profiles = store.read_sound("catalog/profiles")
        made = {row["id"]: row["created"] for row in profiles}
        return cls(marks, rows, catalog.profile_infos(profiles, marks), made)

    def profile_rows(self) -> list[ListedPlan]:
        known = {row["id"]: row for row in self.rows}
        return [_profile(each, known[each.instance]) for each in self.profiles if each.instance in known]

    def instance_rows(self, store: Store, system: str | None) -> list[ListedPlan]:
        newest: dict[str, ProfileInfo] = {}
        for each in sorted(self.profiles, key=lambda each: (self.made[each.id], each.id)):
            if not each.scalings and system in (None, each.system):
                newest[each.instance] = each
        peaks = {row["instance"]: (row["classes"], row["peak"]) for row in store.read_sound("catalog/peaks")}
        own_first = sorted(self.rows, key=lambda row: catalog.own_first_key(row, self.marks))
        return [_instance(row, self.marks, newest.get(row["id"]), peaks.get(row["id"])) for row in own_first]


def chosen(rows: Iterable[ListedPlan], wanted: PlanFilter) -> list[ListedPlan]:
    """The rows that a filter lets through, in their order."""
    words = (wanted.text or "").casefold().split()
    return [
        each
        for each in rows
        if wanted.model in (None, each.model)
        and wanted.system in (None, each.system)
        and (wanted.tag is None or wanted.tag in each.tags)
        and wanted.made_by in (None, each.made_by)
        and (each.fits or not wanted.fits)
        and _contains(each, words)
    ]


def ordered(rows: Sequence[ListedPlan], sort: str, largest_first: bool | None = None) -> list[ListedPlan]:
    """The rows by a column of `SORTS`, those without a value last. `created` keeps the caller's own first.

    largest_first: None for what is usual for the column. sort: the name of the column. Raises UsageError for another
    column.
    """
    if sort not in SORTS:
        raise UsageError(f"{Word('sort', shown(sort))} is not possible: it is one of {', '.join(SORTS)}")
    falls = SORTS[sort] if largest_first is None else largest_first
    if sort == "created":
        return list(rows) if falls else list(reversed(rows))
    there = [each for each in rows if each.value(sort) not in (None, ())]
    return [
        *sorted(there, key=lambda each: _key(each, sort), reverse=falls),
        *(each for each in rows if each.value(sort) in (None, ())),
    ]


def _key(each: ListedPlan, sort: str) -> Any:
    """The value that a row is sorted by; a star comes before other tags."""
    value = each.value(sort)
    return (each.star, value) if sort == "tags" else value.casefold() if isinstance(value, str) else value


def _contains(each: ListedPlan, words: Sequence[str]) -> bool:
    if not words:
        return True
    texts = [
        each.id,
        each.name,
        each.instance_name,
        each.model,
        each.system,
        each.timing,
        each.made_by,
        *each.names,
        *each.tags,
    ]
    text = " ".join(filter(None, (*texts, each.described()))).casefold()
    return all(word in text for word in words)


@functools.lru_cache(_DESCRIBED)
def _described(plan: str, without: tuple[str, ...]) -> str:
    try:
        words = json_mapping(plan, "plan")
    except DamagedError as damage:
        warn_of(f"{damage}")
        return ""
    some = {name: value for name, value in words.items() if name not in without}
    return plan_texts.describe(some) if some else ""


def _instance(
    row: Mapping[str, Any], marks: catalog.UserMarks, profile: ProfileInfo | None, peak: tuple[int, int] | None
) -> ListedPlan:
    computed = peak[1] if peak is not None and peak[0] == row["classes"] else None
    names = tuple(marks.names.get(row["id"], ()))
    name = catalog.called(names, row["name"], marks.spaces)
    return ListedPlan(
        id=row["id"],
        name=name,
        instance=row["id"],
        instance_name=name,
        created=catalog.time_of(row["created"]),
        made_by=user_of(row["builder"]),
        names=names,
        tags=tuple(marks.tags.get(row["id"], ())),
        **_plan(row),
        **_figures(profile, computed),
    )


def _profile(info: ProfileInfo, row: Mapping[str, Any]) -> ListedPlan:
    return ListedPlan(
        id=info.id,
        name=info.name or info.instance_name,
        instance=info.instance,
        instance_name=info.instance_name,
        created=info.created,
        made_by=info.made_by,
        names=info.names,
        tags=info.tags,
        **_plan(row),
        **_figures(info, None),
    )


def _plan(row: Mapping[str, Any]) -> dict[str, Any]:
    words = {name: row[name] for name in WORDS}
    return {"model": row["model"], "plan": row["plan"], "ranks": row["ranks"], "words": words}


def _figures(profile: ProfileInfo | None, computed: int | None) -> dict[str, Any]:
    if profile is None:
        nothing = ("profile", "system", "timing", "step", "mfu", "tokens", "room")
        return {**dict.fromkeys(nothing), "scaled": False, "memory": computed}
    a_second = profile.tokens_per_second
    return {
        "profile": profile.id,
        "system": profile.system,
        "timing": listing.timing_of(profile),
        "scaled": bool(profile.scalings),
        "step": profile.step,
        "mfu": profile.mfu,
        "tokens": None if a_second is None else a_second / profile.ranks,
        "memory": computed if profile.memory is None else profile.memory,
        "room": profile.room,
    }
