"""The classes of configs that readers read: spellings and defaults of keys, as the package transformers has them.

`table` makes `stagedb/models/readers/classes.json`. A file that leaves a key out has the default of its class, and each
spelling of the class's `attribute_map` may be in a file.
"""

import json
from collections.abc import Iterable
from dataclasses import MISSING
from typing import Any

import transformers

from scripts.recording.under_torch.model_draw import read_by_code

_OF_ALL = set(transformers.PreTrainedConfig.__dataclass_fields__) - {"tie_word_embeddings"}
_NO_MEANING = ("_token_id", "_token_ids", "_token_index", "_dropout", "_pdrop")
_NOT_BUILT = {"num_nextn_predict_layers", "num_mtp_layers"}
"""Layers that the package's own classes never have, with or without their default."""


def table(architectures: Iterable[str], texts: Iterable[str]) -> dict[str, Any]:
    """The classes of architectures, and of text models by their `model_type`; those that the package lacks are out."""
    classes: dict[str, Any] = {}
    named: dict[str, str] = {}
    own: dict[str, Any] = {}
    for architecture in architectures:
        made = getattr(transformers, architecture, None)
        if made is not None:
            of = made.config_class
            named[architecture] = of.model_type
            classes[of.model_type] = described(of)
            inner = getattr(of(), "text_config", None)
            if inner is not None:
                classes[inner.model_type] = described(type(inner))
                found = _own(of, inner)
                own.update({architecture: found} if found else {})
    for architecture in named:
        word, keys = read_by_code(architecture)
        classes[word]["of_code"] = keys
    for word in texts:
        if word in transformers.CONFIG_MAPPING:
            of = transformers.CONFIG_MAPPING[word]
            classes.setdefault(of.model_type, described(of))
    return {
        "transformers": transformers.__version__,
        "architectures": dict(sorted(named.items())),
        "inner": dict(sorted(own.items())),
        "classes": dict(sorted(classes.items())),
    }


def described(of: Any) -> dict[str, Any]:
    """The spellings of a class's keys, and the default of each; null for one that follows from others."""
    made = {}
    for key, field in of.__dataclass_fields__.items():
        if key in _OF_ALL | _NOT_BUILT or key.endswith(_NO_MEANING) or not _is_key(field):
            continue
        value = field.default if field.default is not MISSING else None
        if value is None and field.default_factory is not MISSING:
            value = field.default_factory()
        made[key] = value if isinstance(value, int | float | str) else _plain(value)
    return {"aliases": dict(of.attribute_map), "of_code": [], "defaults": made}


def _own(of: Any, usual: Any) -> dict[str, Any]:
    """The defaults that a whole model's class has for its text model, where they differ from those of its class."""
    inner = of(text_config={"model_type": usual.model_type}).text_config.to_dict()
    fields, alone = described(type(usual))["defaults"], type(usual)().to_dict()
    differ = {key: inner[key] for key in fields if key in inner and inner[key] != alone.get(key)}
    named = getattr(of.sub_configs_defaults.get("text_config"), "init_kwargs", {})
    differ |= {key: value for key, value in named.items() if key in fields and inner.get(key) == value}
    return {usual.model_type: _plain(differ)} if differ else {}


def _is_key(field: Any) -> bool:
    return "ClassVar" not in str(field.type)


def _plain(value: Any) -> Any:
    """A default that JSON has; null for others."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError):
        return None


def written(made: dict[str, Any]) -> str:
    """The table as a text: a line for each class."""
    head = f'{{\n"transformers": {json.dumps(made["transformers"])},\n"architectures": {{\n'
    parts = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made["architectures"].items())
    classes = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made["classes"].items())
    own = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in made["inner"].items())
    return f'{head}{parts}\n}},\n"inner": {{\n{own}\n}},\n"classes": {{\n{classes}\n}}\n}}\n'
