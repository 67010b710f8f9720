"""Nothing is replaced but what stagedb wrote: all else under a name stays as it is, with --force or without."""

import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stagedb.errors import UsageError
from stagedb.traces import Request, unpack_traces
from stagedb.traces.exporting import trace_set
from stagedb.traces.output_places import check_directory, check_file
from stagedb.traces.packed_file import INDEX, write_packed
from tests.traces.synthetic import workload
from tests.traces.written import export_workload, files_of


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory that a mistake may delete, with something in it and above it."""
    here = tmp_path / "home" / "work"
    here.mkdir(parents=True)
    (here / "mine").write_text("precious")
    (here.parent / "mine").write_text("precious")
    monkeypatch.chdir(here)
    return here


def tree(top: Path) -> dict[str, bytes]:
    """Everything below a directory, links and what they lead to among it."""
    return {
        str(path.relative_to(top)): bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in top.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def other_directory(here: Path) -> Path:
    (here / "other").mkdir()
    (here / "other" / "mine").write_text("precious")
    return here / "other"


def of_another_tool(here: Path) -> Path:
    (other_directory(here) / "manifest.json").write_text(json.dumps({"what": "a web page", "versions": {}}))
    return here / "other"


def with_a_deep_manifest(here: Path) -> Path:
    (other_directory(here) / "manifest.json").write_text("[" * 100_000)
    return here / "other"


def link_to_a_set(here: Path) -> Path:
    export_workload(workload(), here / "set")
    (here / "link").symlink_to("set")
    return here / "link"


def link_to_nothing(here: Path) -> Path:
    (here / "link").symlink_to("nothing")
    return here / "link"


def set_in_which_one_is(here: Path) -> Path:
    export_workload(workload(), here / "set")
    os.chdir(here / "set")
    return Path()


def set_above(here: Path) -> Path:
    export_workload(workload(), here / "set")
    (here / "set" / "below").mkdir()
    os.chdir(here / "set" / "below")
    return here / "set"


def set_by_a_detour(here: Path) -> Path:
    export_workload(workload(), here / "set")
    (here / "set" / "below").mkdir()
    return Path("set/below/..")


KEPT: dict[str, tuple[Callable[[Path], Path], str]] = {
    "here": (lambda here: Path(), "the current directory"),
    "here, by its name": (lambda here: here, "the current directory"),
    "above": (lambda here: Path(".."), "holds the current directory"),
    "above, by its name": (lambda here: here.parent, "holds the current directory"),
    "of other files": (other_directory, "is not a trace set of stagedb"),
    "of another tool": (of_another_tool, "is not a trace set of stagedb"),
    "with a manifest that is none": (with_a_deep_manifest, "is not a trace set of stagedb"),
    "a link": (link_to_a_set, "symbolic link"),
    "a link to nothing": (link_to_nothing, "symbolic link"),
    "a set in which one is": (set_in_which_one_is, "the current directory"),
    "a set above": (set_above, "holds the current directory"),
    "a set by a detour": (set_by_a_detour, "no name"),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("verb", ["export", "unpack"])
@pytest.mark.parametrize("case", KEPT)
def test_a_directory_that_is_no_set_is_kept(tmp_path: Path, inside: Path, case: str, verb: str, force: bool) -> None:
    packed = tmp_path / "set.packed"
    write_packed(packed, trace_set(workload()))
    make, reason = KEPT[case]
    out = make(inside)
    before = tree(tmp_path / "home")
    with pytest.raises(UsageError, match=reason if force or "detour" not in case else "--force") as refused:
        if verb == "export":
            export_workload(workload(), out, force=force)
        else:
            unpack_traces(packed, Request(out, force=force))
    assert "--out" in str(refused.value)
    assert tree(tmp_path / "home") == before


def test_the_root_and_mount_points_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mounted").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "mounted")
    with pytest.raises(UsageError, match="is a mount point, which --force does not replace"):
        check_directory(tmp_path / "mounted", force=True)
    for force in (False, True):
        with pytest.raises(UsageError, match="is the root of all files"):
            check_directory(Path("/"), force)


def test_resuming_into_a_directory_that_is_no_set_is_refused(inside: Path) -> None:
    for force in (False, True):
        with pytest.raises(UsageError, match="is the current directory"):
            export_workload(workload(), Path(), resume=True, force=force)
    assert tree(inside) == {"mine": b"precious"}


def regular(here: Path) -> Path:
    return here / "mine"


def archive_of_others(here: Path) -> Path:
    with zipfile.ZipFile(here / "other.zip", "w") as archive:
        archive.writestr(INDEX, json.dumps({"what": "packed lunch"}))
    return here / "other.zip"


def link_to_a_packed_set(here: Path) -> Path:
    write_packed(here / "set.packed", trace_set(workload()))
    (here / "link").symlink_to("set.packed")
    return here / "link"


def pipe(here: Path) -> Path:
    os.mkfifo(here / "pipe")
    return here / "pipe"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda here: here, "is a directory"),
        (regular, "is not a packed trace set"),
        (archive_of_others, "is not a packed trace set"),
        (link_to_a_packed_set, "symbolic link"),
        (link_to_nothing, "symbolic link"),
        (pipe, "no regular file"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_is_no_packed_set_is_kept(
    inside: Path, make: Callable[[Path], Path], reason: str, force: bool
) -> None:
    out = make(inside)
    before = {path.name: path.lstat().st_ino for path in inside.iterdir()}
    with pytest.raises(UsageError, match=reason) as refused:
        check_file(out, force)
    assert "--out" in str(refused.value)
    with pytest.raises(UsageError, match=reason):
        Request(out, force=force, packed=True).check(8, None)
    assert {path.name: path.lstat().st_ino for path in inside.iterdir()} == before


def test_a_packed_set_is_replaced_with_force_alone(inside: Path) -> None:
    packed = inside / "set.packed"
    write_packed(packed, trace_set(workload()))
    check_file(packed, force=True)
    with pytest.raises(UsageError, match="replace it with --force"):
        check_file(packed, force=False)
    check_file(inside / "new", force=False)


def test_a_packed_file_is_not_removed_with_the_set_around_it(inside: Path) -> None:
    export_workload(workload(), inside / "set")
    write_packed(inside / "set" / "set.packed", trace_set(workload()))
    before = files_of(inside / "set")
    with pytest.raises(UsageError, match=r"other files in it \(set.packed; move them first\)"):
        unpack_traces(inside / "set" / "set.packed", Request(inside / "set", force=True))
    assert files_of(inside / "set") == before
