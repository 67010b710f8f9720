"""The number format of each class of tensors, and the bytes that an element takes."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks import find_framework, recipes_with
from stagedb.ir.packed_weights import PACKED
from stagedb.mentions import Word
from stagedb.plans.aspects import FORMAT_WORDS, Formats
from stagedb.plans.aspects.precision import FORMATS

FORMAT_BYTES: Mapping[str, int] = {
    "bf16": 2,
    "fp16": 2,
    "fp32": 4,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int64": 8,
    "bool": 1,
    "uint8": 1,
}
"""Bytes of one element, by name."""

CHOICES: Mapping[str, tuple[str, ...]] = {word.field: tuple(map(str, word.choices)) for word in FORMAT_WORDS.values()}
"""The formats that each field of `Dtypes` may have."""

FIXED: Mapping[str, str] = {
    **{name: name for name in ("fp32", "bf16", "fp8_e4m3", "fp8_e5m2", "int64", "bool")},
    **dict.fromkeys(("blocks", "even_blocks", *PACKED), "uint8"),
}
"""Classes with a format that no plan changes: statistics and the loss, matmul operands in fp8, token ids, masks, and
numbers in blocks, which have scales in addition: states of an optimizer, and weights of 4 bits."""

HALVES = frozenset({"bf16", "fp16"})


@dataclass(frozen=True)
class Dtypes(Formats):
    """The format of each dtype class of a graph.

    Raises UsageError, with the nearest valid plan, for formats that cannot be combined.
    """

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_choice(field.name, getattr(self, field.name))
        self._check_halves()
        if self.act == "fp32" and self.param != "fp32":
            raise UsageError(
                f"a matmul needs operands of one format, and fp32 activations differ from {self.param} parameters: "
                f"take {Word('param_dtype', 'fp32')}, or {Word('dtype', self.param)}"
            )
        if self.act == "fp32" and self.logits != "fp32":
            raise UsageError(
                f"a loss in {self.logits} would narrow its fp32 logits: take {Word('logits_dtype', 'fp32')}"
            )
        if self.master == "fp32" and self.param == "fp32":
            raise UsageError(
                "a master copy is wider than its parameters, and these are fp32: take "
                f"{Word('master_dtype', 'none')}, or {Word('param_dtype', 'bf16')}"
            )

    @classmethod
    def of(
        cls,
        recipe: str,
        dtype: str = "bf16",
        *,
        param: str | None = None,
        grad: str | None = None,
        reduce: str | None = None,
        opt: str | None = None,
        master: str | None = None,
        logits: str | None = None,
        cache: str = "same",
    ) -> "Dtypes":
        """The framework's formats for one compute format. A format that is given by name wins.

        Gradients are reduced in their own format.

        recipe: the framework's name. dtype: of activations and matmuls. param, grad, reduce, opt, master: of
        parameters, gradients, their reduction, the optimizer's states and master copies; None: the framework's. logits:
        of the loss; None: fp32. cache: of keys and values.
        """
        defaults = find_framework(recipe).formats
        param = param or defaults.parameters.get(dtype, dtype)
        grad = grad or defaults.gradients.get(param, param)
        opt = opt or defaults.optimizer.get(param, param)
        master = master or defaults.master.get(param, "none")
        return cls(dtype, param, grad, reduce or grad, opt, master, logits or "fp32", cache)

    def usual(self, recipe: str) -> dict[str, str]:
        """The formats that a framework takes if a plan names none but the compute format and that of parameters.

        recipe: the framework's name.
        """
        return dataclasses.asdict(Dtypes.of(recipe, self.act, param=self.param, logits=self.logits))

    def check(self, recipe: str, fp8: bool, packed: bool = False) -> None:
        """Raise UsageError if the framework, fp8 matmuls or weights of 4 bits do not support these formats.

        recipe: the framework's name. fp8: whether matmuls compute in it. packed: whether weights have 4 bits.
        """
        if packed and self.act not in HALVES:
            raise UsageError(
                f"kernels that read weights of 4 bits compute in bf16 or fp16, not in {self.act}: take "
                f"{Word('dtype', 'bf16')}, or {Word('weight_dtype', 'same')}"
            )
        if fp8 and self.act != "bf16":
            raise UsageError(
                "fp8 matmuls produce bf16 results, and all other operators compute in bf16 with them, not in "
                f"{self.act}: take {Word('dtype', 'bf16')}, or {Word('matmul_dtype', 'same')}"
            )
        formats = find_framework(recipe).formats
        if self.param in formats.refused_parameters:
            raise UsageError(formats.refused_parameters[self.param])
        if not formats.wide_gradients and FORMAT_BYTES[self.grad] > FORMAT_BYTES[self.param]:
            raise UsageError(
                f"{recipe} stores a gradient at most in its parameter's format, and {self.grad} gradients are wider "
                f"than {self.param} parameters: take {Word('grad_dtype', self.param)}, "
                f"{Word('param_dtype', self.grad)}, or {recipes_with(lambda other: other.formats.wide_gradients)}"
            )

    def names(self) -> dict[str, str]:
        """The format of every dtype class, including the fixed ones."""
        return {**FIXED, **self._classes()}

    def widths(self) -> dict[str, int]:
        """The symbols `e_<class>` of expressions: bytes of an element."""
        return {f"e_{name}": FORMAT_BYTES[format_] for name, format_ in self._classes().items()}

    def _classes(self) -> dict[str, str]:
        # A master copy has one format or does not exist: it is no class of its own.
        own = {name: format_ for name, format_ in vars(self).items() if name != "master"}
        return {**own, "cache": self.act if self.cache == "same" else self.cache}

    def _check_halves(self) -> None:
        for name in ("param", "grad", "logits"):
            other = getattr(self, name)
            if {self.act, other} == HALVES:
                raise UsageError(
                    f"{other} {_CLASSES[name]} with {self.act} activations: bf16 and fp16 differ in range, and no "
                    f"framework mixes them: take {_WORDS[name].mention(self.act)} or fp32, or {Word('dtype', other)}"
                )


_CLASSES = {
    "act": "activations",
    "param": "parameters",
    "grad": "gradients",
    "reduce": "gradients on the wire",
    "opt": "optimizer moments",
    "master": "the master copy",
    "logits": "logits",
    "cache": "caches",
}


_WORDS = {word.field: word for word in FORMAT_WORDS.values()}


def _check_choice(name: str, format_: str) -> None:
    valid = ", ".join(CHOICES[name])
    if format_ in CHOICES[name]:
        return
    if format_.startswith("fp8"):
        verb = "has" if name == "master" else "have"
        raise UsageError(
            f"fp8 is only a format of matmul operands, {_CLASSES[name]} {verb} too little room in it: "
            f"{_WORDS[name].mention()} is one of {valid}; {Word('matmul_dtype', 'fp8')} changes the matmuls "
            "of linear layers"
        )
    if name == "opt" and format_ == "fp16":
        raise UsageError(
            "AdamW adds 1e-8 to the root of the second moment, a square of gradients, and both are zero in fp16: "
            f"take {Word('opt_dtype', 'fp32')} or {Word('opt_dtype', 'bf16')}"
        )
    if name == "master" and format_ in FORMATS:
        raise UsageError(
            f"a master copy keeps the bits that updates lose in 16-bit parameters, and {format_} would keep none: "
            f"take {Word('master_dtype', 'fp32')}, or {Word('master_dtype', 'none')}"
        )
    raise UsageError(f"unknown number format {shown(format_)}: {_WORDS[name].mention()} is one of {valid}")
