"""Shapes of the inputs of operators as one text, such as `[[768,384],[384,96]]`, for all files that have some."""

import msgspec

_LONGEST = 500
"""Characters of a text: those of lists of all parameters of a model are longer."""

_Shape = list[int | list[int | list[int]]]

_decode = msgspec.json.Decoder(list[_Shape]).decode
_encode = msgspec.json.Encoder().encode


def input_shapes(written: bytes) -> str | None:
    """The text of shapes in JSON: one a tensor, a list of them a list of tensors, and `[]` for a number.

    None for what is no such list, or has no input; an empty text for shapes that take more than 500 characters.
    written: the JSON of an event's `Input Dims`.
    """
    try:
        found = _decode(written)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    text = _encode(found).decode()
    return None if not found else text if len(text) <= _LONGEST else ""
