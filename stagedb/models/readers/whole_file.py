"""What a config has in addition to its sizes, and what would make another model of them.

These keys are looked at in the whole file, and in the configs of its text model alike.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.models.sizes import MOST_FURTHER

TRAINED_FORMATS = ("fp8", "mxfp4", "bitnet", "compressed-tensors")
"""Formats in which publishers write the files of a model that is trained with other ones. The plan decides them."""

_FURTHER = ("num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules", "mtp_transformer_layers")
_GROUPS = ("n_group", "topk_group")
_EXPERTS = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")


def check_file(config: Mapping[str, Any]) -> None:
    """Raise UsageError for a file whose keys make another model than its layers do.

    config: the content of `config.json`.
    """
    for where, part in _parts(config):
        if part.get("is_encoder_decoder"):
            raise UsageError(
                f"{where}is_encoder_decoder is not supported: decoder-only models only; a model without an encoder has "
                "it false, or leaves it out"
            )
        if part.get("torchscript"):
            raise UsageError(
                f"{where}torchscript is not supported: it copies tied tables, which no training does; take it out"
            )
        _check_quantization(where, part.get("quantization_config"))
        for key in _FURTHER:
            count = part.get(key)
            if type(count) is int and count > MOST_FURTHER:
                raise UsageError(f"{where}{key} must be at most {MOST_FURTHER}, not {shown(count)}")
        experts = next((part[key] for key in _EXPERTS if type(part.get(key)) is int), None)
        for key in _GROUPS:
            count = part.get(key)
            if experts is not None and type(count) is int and count > experts:
                raise UsageError(f"{where}{key} {shown(count)} is not supported: there are {shown(experts)} experts")


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The whole config and that of its text model, each with the beginning of the names of its keys."""
    yield "", config
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        yield "text_config: ", inner


def _check_quantization(where: str, found: object) -> None:
    """Raise UsageError for weights in a format that is made after training."""
    if not found:
        return
    method = found.get("quant_method") if isinstance(found, Mapping) else found
    if method in TRAINED_FORMATS:
        return
    stored = _stored(found) if isinstance(found, Mapping) else ""
    way = (
        f"take the key out, and serve the model with {Word('weight_dtype', stored)}, which stores weights so"
        if stored
        else "give the config of the model before that, or take the key out; the plan decides number formats "
        f"({Word('weight_dtype')} has those of 4 bits: AWQ and GPTQ in groups of 128, NVFP4)"
    )
    raise UsageError(
        f"{where}quantization_config with quant_method {shown(method)} is not supported: its weights are packed after "
        f"training ({', '.join(TRAINED_FORMATS)} are formats of files alone): {way}"
    )


def _stored(found: Mapping[str, Any]) -> str:
    """The word for weights of 4 bits as this config has them; empty if no word has them.

    GPTQ with `desc_act` keeps the order of its inputs in addition, which no word has.
    """
    method = found.get("quant_method")
    if method == "modelopt":
        return "nvfp4" if found.get("quant_algo") == "NVFP4" else ""
    bits, group = found.get("bits", found.get("w_bit")), found.get("group_size", found.get("q_group_size"))
    if (bits, group) != (4, 128):
        return ""
    if method == "awq":
        return "int4" if found.get("zero_point", True) is True else ""
    if method == "gptq" and not found.get("desc_act"):
        return "int4_symmetric" if found.get("sym", True) is True else "int4"
    return ""
