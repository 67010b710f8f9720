"""The one door for what comes in: files and texts of people and stores, read with bounds, as plain data.

`bounded_files` opens regular files up to a size. `documents` turns a text (YAML, JSON, TOML) into lists, mappings,
texts, numbers, booleans and None, and refuses everything else: tags, aliases, duplicate keys, deep nesting, integers
over 64 bits, infinite numbers. `shown` (`short_values`) cuts a value short for an error, and `did_you_mean`
(`similar_words`) asks there whether a known word is meant.
"""

from typing import TYPE_CHECKING

from stagedb.inputs.bounded_files import (
    is_directory,
    is_there,
    open_regular,
    read_bytes,
    read_text,
)
from stagedb.inputs.short_values import shown
from stagedb.inputs.similar_words import did_you_mean, nearest, question
from stagedb.inputs.unicode_text import check_unicode
from stagedb.lazy_names import lazily, listed

if TYPE_CHECKING:
    from stagedb.inputs.documents import parse_document, parse_json, read_document
    from stagedb.inputs.yaml_nodes import compose

__all__ = [
    "check_unicode",
    "compose",
    "did_you_mean",
    "is_directory",
    "is_there",
    "nearest",
    "open_regular",
    "parse_document",
    "parse_json",
    "question",
    "read_bytes",
    "read_document",
    "read_text",
    "shown",
]

# Most commands print errors, and few read documents.
_MODULES = {"documents": ("parse_document", "parse_json", "read_document"), "yaml_nodes": ("compose",)}
__getattr__ = lazily(__name__, _MODULES)
__dir__ = listed(globals())
