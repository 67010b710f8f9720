"""The one door for what comes in: files and texts of people and stores, read with bounds, as plain data.

`bounded_files` opens regular files up to a size. `documents` turns a text (YAML, JSON, TOML) into lists, mappings,
texts, numbers, booleans and None, and refuses everything else: tags, aliases, duplicate keys, deep nesting, integers
over 64 bits, infinite numbers. `shown` cuts a value short for an error.
"""

from stagedb.inputs.bounded_files import is_there, read_bytes, read_text
from stagedb.inputs.documents import compose, parse_document, parse_json, read_document
from stagedb.inputs.shown import shown

__all__ = ["compose", "is_there", "parse_document", "parse_json", "read_bytes", "read_document", "read_text", "shown"]
