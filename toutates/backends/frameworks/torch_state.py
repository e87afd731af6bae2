"""What a module of PyTorch keeps from run to run: tensors and attributes that its runs write to."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from functools import reduce
from typing import Any, Final

import torch

__all__ = ["Kept", "ModuleState", "StateChanged"]

#: Attributes of TorchScript that a run may change without setting them.
_MUTABLE: Final = ("ListType", "DictType")
_MOST_NAMED: Final = 5

#: What a run has left: tensors and attributes, by name.
Kept = Mapping[str, Any]


class StateChanged(RuntimeError):
    """A run has written to what a module keeps, which no run had done when the module was loaded."""


class ModuleState:
    """What a module may write to. Made before its first run; used by one thread at a time where anything is written.

    Args:
        module: of TorchScript, or of an exported program.
        parameters: names of parameters that it may write to; others are not copied, because they are large.

    Raises:
        ValueError: it sets an attribute that cannot be found again.
    """

    def __init__(self, module: Any, parameters: Collection[str] = ()) -> None:
        self._module = module
        self._tensors: dict[str, torch.Tensor] = dict(module.named_buffers())
        others = {name: own for name, own in module.named_parameters() if name not in parameters}
        self._tensors |= {name: own for name, own in module.named_parameters() if name in parameters}
        #: by dotted name, attributes that are set, or whose values can change
        self._attributes: dict[str, Any] = {}
        self._set: set[str] = set()
        if isinstance(module, torch.jit.ScriptModule):
            graph = getattr(module, "inlined_graph", None)  # a module whose forward is overloaded has none
            if graph is not None:
                self._read_script(graph, others)
        elif isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                if node.op == "get_attr" and isinstance(found := self._get(node.target), torch.Tensor):
                    self._tensors.setdefault(node.target, found)
            for name in others:
                self._tensors.pop(name, None)
        self._parameters = [(name, tensor, tensor._version) for name, tensor in others.items()]
        for name in self._attributes:
            self._tensors.pop(name, None)
        self._initial = {name: tensor.detach().clone() for name, tensor in self._tensors.items()}
        self._watched = list(self._tensors.values())
        self._versions = [tensor._version for tensor in self._watched]
        self._dirty: set[str] = set()

    @property
    def has_tensors(self) -> bool:
        """Whether there are tensors that ``check`` looks at."""
        return bool(self._tensors)

    @property
    def written_parameters(self) -> list[str]:
        """The names of parameters, but for those as given, that runs have written to."""
        return [name for name, tensor, version in self._parameters if tensor._version != version]

    @property
    def written(self) -> str:
        """The names of what runs write to, as far as they have or say so; "" for nothing."""
        self._look()
        changed = {name for name, value in self._attributes.items() if not _equal(self._get(name), value)}
        names = sorted({*self._dirty, *self.written_parameters, *self._set, *changed})
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return ", ".join(names[:_MOST_NAMED]) + more

    def check(self) -> None:
        """Undo what a run has written to tensors, if it has. Costs 0.1 us for each tensor.

        Raises:
            StateChanged: it has.
        """
        if [tensor._version for tensor in self._watched] != self._versions:
            self._look()
            names = ", ".join(sorted(self._dirty)[:_MOST_NAMED])
            self.put(None)
            self._dirty.clear()
            raise StateChanged(
                f"the module has written to {names}, which the next caller would see; write sequence_batching {{ }}, "
                "or the parameter stateless: true"
            )

    def take(self) -> Kept:
        """A copy of what runs have left."""
        self._look()
        kept: dict[str, Any] = {name: self._tensors[name].detach().clone() for name in self._dirty}
        kept |= {name: _copied(self._get(name)) for name in self._attributes}
        return kept

    def put(self, kept: Kept | None) -> None:
        """Have the next run begin with what ``take`` has returned; with a fresh state for None."""
        self._look()
        kept = kept or {}
        with torch.no_grad():
            for name in self._dirty:
                tensor, value = self._tensors[name], kept.get(name, self._initial[name])
                if tensor.shape != value.shape:
                    tensor.resize_(value.shape)
                tensor.copy_(value)
        for name, value in self._attributes.items():
            path, _, last = name.rpartition(".")
            setattr(self._get(path), last, _copied(kept.get(name, value)))
        self._versions = [tensor._version for tensor in self._watched]

    def _look(self) -> None:
        """Note which tensors have been written to."""
        for (name, tensor), version in zip(self._tensors.items(), self._versions, strict=True):
            if tensor._version != version:
                self._dirty.add(name)

    def _get(self, name: str) -> Any:
        return reduce(getattr, name.split("."), self._module) if name else self._module

    def _read_script(self, graph: Any, parameters: Mapping[str, Any]) -> None:
        """Find attributes that are set or can change, and tensors that are no buffers."""
        for node in graph.findAllNodes("prim::SetAttr", True):
            name = _path(next(node.inputs()).node(), graph, node.s("name"))
            self._attributes[name] = _copied(self._get(name))
            self._set.add(name)
        for node in graph.findAllNodes("prim::GetAttr", True):
            kind = node.output().type().kind()
            if kind in (*_MUTABLE, "TensorType"):
                name = _path(next(node.inputs()).node(), graph, node.s("name"))
                if kind in _MUTABLE:
                    self._attributes[name] = _copied(self._get(name))
                elif name not in parameters:
                    self._tensors.setdefault(name, self._get(name))
        for number, node in enumerate(graph.findAllNodes("prim::Constant", True)):
            # Of a traced module, tensors that are neither parameters nor buffers.
            if node.hasAttribute("value") and node.kindOf("value") == "t" and node.t("value").numel() > 1:
                self._tensors[f"constant {number}"] = node.t("value")


def _path(node: Any, graph: Any, name: str) -> str:
    """The dotted name of an attribute of the object that ``node`` gives.

    Raises:
        ValueError: that is no part of the module.
    """
    if node.kind() == "prim::Param":
        return name
    if node.kind() != "prim::GetAttr":
        raise ValueError(f"the module sets '{name}' of an object that is not its own; export it without that")
    return _path(next(node.inputs()).node(), graph, f"{node.s('name')}.{name}")


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return left.shape == right.shape and left.dtype == right.dtype and bool(torch.equal(left, right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and bool(left == right)
