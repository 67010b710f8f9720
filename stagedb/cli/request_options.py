"""The options of `memory` that ask how many requests fit, and the lines that answer it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from stagedb.cli.help_groups import REQUESTS
from stagedb.cli.shared_options import Printing
from stagedb.errors import UsageError
from stagedb.files import GB, shown

if TYPE_CHECKING:
    from stagedb.api.memory_rows import RequestRoom, RequestWords
    from stagedb.frameworks.engines import EngineSettings
    from stagedb.memory.request_blocks import MemoryShare, RequestFit


@dataclass(frozen=True)
class RequestOptions:
    """Options that divide an accelerator's memory between weights, activations and caches, as an engine does."""

    PANEL: ClassVar[str] = REQUESTS

    memory_share: Annotated[
        str | None,
        typer.Option(
            metavar="F",
            help="The share of an accelerator's memory that an engine takes: count the requests that fit into it. "
            " [that of the engine's file; 0.9]",
        ),
    ] = None
    block_size: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Tokens of a block of the cache.  [that of the engine's file; 16]"),
    ] = None
    request_len: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens of a request.  [those of the plan at its step's end]")
    ] = None
    held: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="What the engine's share holds next to weights and caches, if you measured it, as 1.2GB.  "
            "[activations of the step, and what is known of the engine]",
        ),
    ] = None

    def words(self, capacity: int | None, engine: "EngineSettings | None") -> "RequestWords | None":
        """The options as a request of `Stagedb.memory`; None if none of them was given.

        capacity: bytes of an accelerator, if the command line has them. engine: the settings of an engine's file, if
        the plan is from one.
        """
        from stagedb.api.memory_rows import RequestWords
        from stagedb.cli.memory import size_of
        from stagedb.frameworks.engines.settings import read_share

        if self == RequestOptions() and (
            engine is None or not (engine.engine.share or "memory_share" in engine.values)
        ):
            return None  # without a share the engine (SGLang) chooses one by itself, which stagedb does not know
        share = None if self.memory_share is None else read_share(self.memory_share)
        if self.memory_share is not None and share is None:
            raise UsageError(
                f"--memory-share takes a number above 0 and up to 1, such as 0.9, not {shown(self.memory_share)}"
            )
        held = None if self.held is None else size_of(self.held, "--held")
        return RequestWords(share, self.block_size, self.request_len, held, capacity, engine)

    def check(self, room: "RequestRoom | None") -> None:
        """Raise UsageError if requests were asked for, and no memory is known."""
        if room is None and self != RequestOptions():
            raise UsageError("how many requests fit depends on the accelerator: name it with --system or --capacity")


def report_requests(printing: Printing, room: "RequestRoom") -> bool:
    """Print how many requests fit, and return whether those of the plan do."""
    share, fit = room.share, room.fit
    printing.line(_account(share))
    for found in room.fits.values():
        printing.line("; ".join(_answer(found)))
    if fit.requests >= room.wanted or share.cache < 0:
        return share.cache >= 0
    each = fit.requests // room.microbatches
    fewer = f"--micro-batch-size {each}, or " if each else ""
    printing.line(
        f"the plan has {room.wanted:,} requests on a rank at once, of {fit.tokens:,} tokens: take {fewer}more --tp"
    )
    return False


def _account(share: "MemoryShare") -> str:
    """A line with the source of the bytes of the cache."""
    if share.given is not None:
        return f"{share.cache / GB:,.2f} GB are given for caches"
    of = f"{_gb(share.capacity)} less {_parts(share.reserve)}" if share.reserve else _gb(share.capacity)
    less = [f"weights {_gb(share.weights)}", *(f"{name} {_gb(size)}" for name, size in share.held.items())]
    if share.of == "free":
        return f"caches have {_gb(share.cache)}: {float(share.share):g} of what is free of {of} ({', '.join(less)})"
    if share.of == "weights":
        less = less[:1]
    return f"caches have {_gb(share.cache)}: {float(share.share):g} of {of}, without {', '.join(less)}"


def _answer(fit: "RequestFit") -> Iterator[str]:
    """The requests that fit, their blocks, and what one more needs."""
    blocks = f": {fit.blocks:,} blocks of {fit.block_tokens}" if fit.even else ""
    if fit.requests:
        prefix = f" that share {fit.shared:,}" if fit.shared else ""
        number = "request" if fit.requests == 1 else "requests"
        yield f"fits {fit.requests:,} {number} of {fit.tokens:,} tokens{prefix}{blocks}"
        yield f"the next needs {_gb(fit.missing)} more"
    else:
        yield f"does not fit: no request of {fit.tokens:,} tokens has room{blocks}"
        yield f"one needs {_gb(fit.missing)} more: take more --tp, --cp or --pp, or fewer tokens"


def _parts(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {_gb(size)}" for name, size in parts.items())


def _gb(size: int) -> str:
    return f"{size / GB:,.2f} GB"
