"""Workflows: the tasks that one step runs, and the templates of operators that each of them runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Gradients = Literal["none", "inputs", "weights"]
"""The tensors for which the operators of a template make gradients."""

RECOMPUTE = "recompute"
"""The phase of operators that run a part of a forward again. All others have the phase of their template."""


@dataclass(frozen=True)
class Template:
    """Operators of a graph that tasks run together, on every block of a stage.

    name: its word in the store. phase: the phase that its operators are counted in.
    upward: it walks the blocks of a stage from the first to the last, and its messages go to the next stage;
        otherwise from the last to the first, and to the stage before.
    once: it runs once a step, after all micro-batches, for all chunks of a stage.
    gradients: the tensors that its operators make gradients of.
    """

    name: str
    phase: str
    upward: bool = True
    once: bool = False
    gradients: Gradients = "none"

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def differentiates(self) -> bool:
        """Whether the operators of the template make gradients."""
        return self.gradients != "none"


@dataclass(frozen=True)
class TaskKind:
    """The work of a task for one micro-batch of one chunk, or once a step.

    name: its word in the store. templates: the templates that it runs, in one issue order.
    letter: its letter in the text of an order; empty for a task that ends every order.
    after: the kind of the task of the same micro-batch and chunk that it waits for.
    sends: it sends its result to a neighbouring stage, whose task of this kind waits for that.
    cost: its time in the units in which bubbles are published: a forward is 1.
    half: it is a part of a task that another kind, `whole`, runs as a whole.
    """

    name: str
    templates: tuple[Template, ...]
    letter: str = ""
    after: "TaskKind | None" = None
    sends: bool = True
    cost: int = 1
    half: bool = False
    whole: "TaskKind | None" = None

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def words(self) -> str:
        """The name of the kind for users."""
        return self.name.replace("_", " ")

    @property
    def phase(self) -> str:
        """The phase in which time and memory of such a task are counted."""
        return self.templates[0].phase

    @property
    def upward(self) -> bool:
        """Whether such a task walks the blocks of a stage, and of the pipeline, from the first to the last."""
        return self.templates[0].upward

    @property
    def once(self) -> bool:
        """Whether such a task runs once a step, for all chunks of a stage."""
        return self.templates[0].once

    @property
    def differentiates(self) -> bool:
        """Whether such a task makes gradients."""
        return any(template.differentiates for template in self.templates)

    @property
    def keeps(self) -> bool:
        """Whether results of such a task are kept for a task that makes gradients."""
        return not self.once and not self.differentiates

    @property
    def releases(self) -> bool:
        """Whether tensors that are kept for gradients are released when such a task ends."""
        return any(template.gradients == "weights" for template in self.templates)

    @property
    def hop(self) -> int:
        """The direction of the task's message: 1 to the next stage, -1 to the one before, 0 without a message."""
        return (1 if self.upward else -1) if self.sends else 0


@dataclass(frozen=True)
class Workflow:
    """The tasks of one step.

    name: its word in a plan (`workflow`). help: one line. kinds: the kinds of its tasks, in the order in which a
    micro-batch runs them. A kind that runs once a step is last; the halves of a kind follow the kind.
    caches: sequences are requests, whose keys and values stay in a cache, and which want the token after their last
    one, not a loss. next_token: a step adds one token to each request. mixes: it adds one token to some and more to
    others, whose attention is of two kinds. drafts: it adds the last token of each request and those of a draft behind
    it, and checks all of them at once.
    """

    name: str
    help: str
    kinds: tuple[TaskKind, ...]
    caches: bool = False
    next_token: bool = False
    mixes: bool = False
    drafts: bool = False

    @property
    def decodes(self) -> bool:
        """Whether a step adds tokens to answers: one to each request, or those that it accepts of a draft."""
        return self.next_token or self.drafts

    @property
    def templates(self) -> tuple[Template, ...]:
        """The templates that the tasks of the workflow run, each once."""
        return tuple(dict.fromkeys(template for kind in self.kinds for template in kind.templates))

    @property
    def phases(self) -> Mapping[str, tuple[TaskKind, ...]]:
        """The kinds of tasks of each phase, in order."""
        names = dict.fromkeys(kind.phase for kind in self.kinds)
        return {name: tuple(kind for kind in self.kinds if kind.phase == name) for name in names}

    @property
    def differentiates(self) -> bool:
        """Whether the workflow has a backward."""
        return any(kind.differentiates for kind in self.kinds)

    @property
    def optimizes(self) -> bool:
        """Whether the workflow has a task once a step, in which the optimizer runs."""
        return any(kind.once for kind in self.kinds)

    @property
    def ending(self) -> tuple[TaskKind, ...]:
        """The kinds of the tasks that end the order of every stage."""
        return tuple(kind for kind in self.kinds if kind.once)

    def running(self, split: bool) -> tuple[TaskKind, ...]:
        """The kinds that a stage runs. split: its schedule runs halves in place of whole kinds."""
        halves = {template for kind in self.kinds if kind.half for template in kind.templates}
        return tuple(kind for kind in self.kinds if kind.half is (split and halves.issuperset(kind.templates)))
