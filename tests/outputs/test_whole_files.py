"""Files that are written: what is replaced, what is written through, and what remains."""

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import StagedbError, UsageError
from stagedb.files import file_name, printable, whole_file, write_whole


def test_a_file_is_made_or_replaced_with_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    write_whole(path, b"one", "--output")
    assert path.read_bytes() == b"one"
    path.chmod(0o640)
    write_whole(path, b"two", "--output")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"two", 0o640)
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]


def test_a_link_remains_and_its_file_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_whole(link, b"new", "--output")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    missing = tmp_path / "missing"
    missing.symlink_to(tmp_path / "later")
    write_whole(missing, b"new", "--output")
    assert missing.is_symlink()
    assert (tmp_path / "later").read_bytes() == b"new"


def test_a_pipe_and_a_device_are_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"rows", "--output")
    reader.join(10)
    assert found == [b"rows"]
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    write_whole(Path(os.devnull), b"rows", "--output")
    assert stat.S_ISCHR(Path(os.devnull).lstat().st_mode)


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*: it is a directory \(--output\)"):
        write_whole(tmp_path, b"", "--output")
    with pytest.raises(StagedbError, match="No such file"):
        write_whole(tmp_path / "none" / "rows", b"", "--output")
    with pytest.raises(UsageError, match="the character NUL"):
        write_whole(tmp_path / "a\0b", b"", "--output")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("llama3-8b", "llama3-8b"),
        ("/tmp/x", "tmp_x"),  # noqa: S108  # a name from a store
        ("../../up", "up"),
        ("..", "unnamed"),
        ("", "unnamed"),
        ("a\nb\x1b[31m", "a_b_31m"),
        (".hidden", "hidden"),
        ("-rf", "rf"),
    ],
)
def test_a_name_from_a_store_is_one_part_of_a_path(text: str, name: str) -> None:
    assert file_name(text) == name


@given(st.text())
def test_no_text_leads_out_of_a_directory(text: str) -> None:
    name = file_name(text)
    assert Path(name).name == name
    assert name[0] not in ".-"
    assert len(name) <= 100
    assert name.isascii()


@given(st.text())
def test_printed_text_has_no_control_characters(text: str) -> None:
    shown = printable(text)
    assert all(each.isprintable() for each in shown.replace("\n", "").replace("\t", ""))
    assert shown == text or not text.isprintable()


def test_a_file_that_somebody_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "team.dump"
    with pytest.raises(UsageError, match="is there already"), whole_file(path, "FILE", replace=False) as file:
        file.write(b"mine")
        path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs"
    assert [each.name for each in tmp_path.iterdir()] == ["team.dump"]
    path.unlink()
    with whole_file(path, "FILE", replace=False) as file:
        file.write(b"mine")
    assert path.read_bytes() == b"mine"
    assert [each.name for each in tmp_path.iterdir()] == ["team.dump"]
