"""The one door for what comes in and what goes out: files and texts of people and stores, and those that are written.

`bounded_files` opens regular files up to a size. `documents` turns a text (YAML, JSON, TOML) into lists, mappings,
texts, numbers, booleans and None, and refuses everything else: tags, aliases, duplicate keys, deep nesting, integers
over 64 bits, infinite numbers. `whole_files` writes a file completely or not at all. `texts` makes what people see
printable, cuts a value short for an error (`shown`), and asks there whether a known word is meant (`did_you_mean`).
"""

from typing import TYPE_CHECKING

from stagedb.files.bounded_files import is_directory, is_there, open_regular, read_bytes, read_text
from stagedb.files.texts import (
    GB,
    check_unicode,
    csv_text,
    did_you_mean,
    json_lines,
    json_text,
    nearest,
    plain_cell,
    printable,
    question,
    readable_cell,
    reserve_text,
    shown,
)
from stagedb.files.whole_files import (
    check_path,
    file_name,
    make_directory,
    not_a_path,
    path_text,
    whole_file,
    write_whole,
)
from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.files.documents import parse_document, parse_json, read_document
    from stagedb.files.yaml_nodes import compose

__all__ = [
    "GB",
    "check_path",
    "check_unicode",
    "compose",
    "csv_text",
    "did_you_mean",
    "file_name",
    "is_directory",
    "is_there",
    "json_lines",
    "json_text",
    "make_directory",
    "nearest",
    "not_a_path",
    "open_regular",
    "parse_document",
    "parse_json",
    "path_text",
    "plain_cell",
    "printable",
    "question",
    "read_bytes",
    "read_document",
    "read_text",
    "readable_cell",
    "reserve_text",
    "shown",
    "whole_file",
    "write_whole",
]

# Most commands print errors, and few read documents.
_MODULES = {"documents": ("parse_document", "parse_json", "read_document"), "yaml_nodes": ("compose",)}
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
