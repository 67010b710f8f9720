"""What one rank does, as PyTorch dispatches it: operators, collectives, and the live bytes of every storage."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroup
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._sharding_prop import ShardingPropagator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from scripts.recording.steps import Held, Sent, Step, Work

COLLECTIVES = {
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "allreduce_": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
    "send": "send",
    "recv_": "recv",
}
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_MATMULS = ("mm", "addmm", "bmm")
_ATTENTIONS = ("_scaled_dot_product", "_flash_attention")


def local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that this rank holds of a tensor that may be distributed."""
    while not type(tensor).__module__.startswith("torch._subclasses"):
        if isinstance(tensor, DTensor):
            tensor = tensor._local_tensor
        elif hasattr(tensor, "elem"):
            tensor = tensor.elem
        else:
            break
    return tensor


class Observer(TorchDispatchMode):
    """Writes what happens to `step` while it is on. Storages that it meets are followed to their end.

    step: None before the step that is recorded; storages are then followed too, for they may live until it begins.
    """

    def __init__(self, axes: dict[str, str], causal: float) -> None:
        super().__init__()
        self.axes = axes
        self.causal = causal
        self.step: Step | None = None
        self.phase = "forward"
        self.paused = False
        self.held: dict[int, tuple[Any, Held]] = {}
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> "Observer":
        original, observer = self._resize, self

        def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
            result = original(storage, size)
            observer._resized(storage)
            return result

        torch.UntypedStorage.resize_ = resize
        shapes = ShardingPropagator._propagate_tensor_meta_non_cached

        def unobserved(*given: Any) -> Any:
            before, observer.paused = observer.paused, True
            try:
                return shapes(*given)
            finally:
                observer.paused = before

        self._shapes = shapes
        ShardingPropagator._propagate_tensor_meta_non_cached = unobserved
        super().__enter__()
        return self

    def __exit__(self, *reason: Any) -> None:
        torch.UntypedStorage.resize_ = self._resize
        ShardingPropagator._propagate_tensor_meta_non_cached = self._shapes
        super().__exit__(*reason)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Everything inside belongs to a phase."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def storage(self, tensor: torch.Tensor) -> Held:
        """What is known of the storage of a tensor. A new one counts from now on."""
        found = local(tensor).untyped_storage()
        key = id(found)
        if key in self.held:
            return self.held[key][1]
        held = Held(found.nbytes(), self.phase)

        def gone(_: Any) -> None:
            self.held.pop(key, None)
            self._changed(held, 0)

        self.held[key] = (weakref.ref(found, gone), held)
        if self.step is not None:
            self.step.changes.append((held, held.size))
        return held

    def _changed(self, held: Held, size: int) -> None:
        held.size = size
        if self.step is not None:
            self.step.changes.append((held, size))

    def _resized(self, storage: torch.UntypedStorage) -> None:
        known = self.held.get(id(storage))
        if known is not None and known[1].size != storage.nbytes():
            self._changed(known[1], storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Iterable[type], args: Any = (), kwargs: Any = None) -> Any:
        if self.paused:
            return func(*args, **(kwargs or {}))
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        kwargs = kwargs or {}
        kind = COLLECTIVES.get(func._schema.name.split("::")[1]) if func.namespace in NAMESPACES else None
        if kind is not None and self.step is not None:
            self.step.events.append(self._sent(kind, args, None))
        result = self._run(func, args, kwargs)
        outputs = [each for each in tree_flatten(result)[0] if isinstance(each, torch.Tensor)]
        for output in outputs:
            self.storage(output)
        if self.step is None:
            return result
        inputs = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if kind is not None:
            self.step.events[-1] = self._sent(kind, args, outputs)
        elif (work := self._work(func, args, kwargs)) is not None:
            self.step.events.append(work)
        if kind is None and func.namespace not in NAMESPACES:
            self._operator(self.step, func, inputs, outputs)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operator. A wait gives the tensor itself; the mesh's own tensors are no shapes only."""
        if func is torch.ops._c10d_functional.wait_tensor.default:
            return args[0]
        given = [each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)]
        if given and not any(isinstance(each, FakeTensor) for each in given):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        return func(*args, **kwargs)

    def _operator(self, step: Step, func: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        sources = {id(each.untyped_storage()) for each in inputs}
        mutable = func._schema.is_mutable
        made = (
            (outputs or inputs[:1])
            if mutable
            else [each for each in outputs if id(each.untyped_storage()) not in sources]
        )
        if not made:
            return
        name = func._schema.name.split("::")[1]
        step.operators.add(
            self.phase,
            f"{func.namespace}.{name}" if func.namespace != "aten" else name,
            sum(each.numel() for each in made),
            sum(each.numel() * each.element_size() for each in inputs),
            sum(each.numel() * each.element_size() for each in made),
        )

    def _work(self, func: Any, args: Any, kwargs: Any) -> Work | None:
        name = func._schema.name.split("::")[1]
        if name in _MATMULS:
            left, right = args[-2:]
            dims = (*left.shape[:-1], right.shape[-1], left.shape[-1])
            flops = 2
            for size in dims:
                flops *= size
            return Work(self.phase, name, dims, flops, 0)
        if not name.startswith(_ATTENTIONS):
            return None
        names = [each.name for each in func._schema.arguments]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        return self._attended(name, given)

    def _attended(self, name: str, given: Any) -> Work:
        """An attention kernel, forward or backward. One with a window computes as many keys a query."""
        # Flash attention's own operators have rows before heads.
        order = (0, 2, 1, 3) if name.startswith("_flash") else (0, 1, 2, 3)
        (batch, heads, rows, size), (_, kv_heads, keys, _), values = (
            [given[word].shape[place] for place in order] for word in ("query", "key", "value")
        )
        window = given.get("window_size_left")
        keys = keys if window is None else min(keys, window + 1)
        dims = (batch, heads, kv_heads, rows, keys, size)
        # The scores and the context; in the backward the scores again, and the gradients of all four operands.
        wide = 3 * size + 2 * values[-1] if name.endswith("_backward") else size + values[-1]
        flops = 2 * batch * heads * rows * keys * wide
        if given.get("is_causal") and rows == keys:
            seen = flops * (rows + 1) // (2 * rows)
        elif given.get("attn_mask") is not None:
            seen = round(flops * self.causal)
        elif window is not None:
            seen = flops * (2 * rows - keys + 1) // (2 * rows)
        else:
            seen = flops
        return Work(self.phase, name, dims if values[-1] == size else (*dims, values[-1]), flops, seen)

    def _sent(self, kind: str, args: Any, outputs: list[torch.Tensor] | None) -> Sent:
        flat = tree_flatten(args)[0]
        tensors = [each for each in flat if isinstance(each, torch.Tensor)]
        group = group_of(args)
        axis = self.axes.get(group.group_name, group.group_name)
        if kind in ("send", "recv"):
            size = _bytes(tensors[0])
            numbers = [each for each in flat if isinstance(each, int)]
            phase = self.storage(tensors[0]).direction or self.phase
            sizes = (size, 0) if kind == "send" else (0, size)
            return Sent(phase, kind, axis, group.size(), _dtype(tensors[0]), *sizes, peer=numbers[0])
        if kind == "all_reduce":
            one = other = tensors[0]
        elif len(tensors) > 1:
            one, other = (tensors[1], tensors[0]) if kind != "reduce_scatter_out" else (tensors[0], tensors[1])
            if kind == "all_gather" and _bytes(one) > _bytes(other):
                one, other = other, one
            if kind == "reduce_scatter" and _bytes(one) < _bytes(other):
                one, other = other, one
        else:
            one, other = tensors[0], outputs[0] if outputs else tensors[0]
        return Sent(self.phase, kind, axis, group.size(), _dtype(one), _bytes(one), _bytes(other))


def group_of(args: Any) -> ProcessGroup:
    """The process group among the arguments of a collective. Raises ValueError if there is none."""
    for each in args:
        if isinstance(each, str):
            try:
                return _resolve_process_group(each)
            except (RuntimeError, ValueError, LookupError):
                continue
        if isinstance(each, torch.ScriptObject):
            try:
                return ProcessGroup.unbox(each)
            except (RuntimeError, TypeError, ValueError):
                continue
        if isinstance(each, ProcessGroup):
            return each
    raise ValueError("a collective without a group")


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
