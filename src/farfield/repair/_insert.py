"""Protections put into a copy of a model: of its class, the same weights, the same names. A program is rewritten."""

from __future__ import annotations

import copy
import copyreg
import functools
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, fx, nn

from farfield._weights import PROTECTIONS
from farfield.calibration import argument_names, both_names, map_leaves
from farfield.graph import copied
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._program import insert_calls, remove_calls

__all__ = ["OPTIONS", "PREFIX", "Inserted", "Insertion", "inserted_into", "without_insertions"]

PREFIX = PROTECTIONS
Place = Literal["input", "hidden", "output"]


@dataclass(frozen=True)
class Insertion:
    """One protection and where it stands.

    Parameters
    ----------
    place
        ``"input"``, ``"hidden"`` or ``"output"``.
    at
        Name or position of the argument; path of the submodule; name of the output.
    module
        A :class:`~farfield.nn.FeatureClamp`, :class:`~farfield.nn.NormCap`, :class:`~farfield.nn.RangeHead` or a
        norm.
    """

    place: Place
    at: str
    module: nn.Module

    @property
    def key(self) -> str:
        """Name among the inserted modules."""
        return f"{self.place}_{self.at}_{type(self.module).__name__}".replace(".", "_")

    def __str__(self) -> str:
        where = {"input": "at input", "hidden": "behind", "output": "at output"}[self.place]
        return f"{type(self.module).__name__} {where} {self.at}"


OPTIONS: Mapping[type[nn.Module], tuple[str, ...]] = {
    FeatureClamp: ("flat", "end", "soft"),
    NormCap: ("axes", "soft"),
    RangeHead: ("knee",),
    nn.LayerNorm: ("normalized_shape", "eps"),
}
"""What a protection is made with besides the tensors in its state dict."""


class Inserted(nn.ModuleDict):
    """The protections of a repaired model; called by a container that calls its children in turn, the identity.

    Their settings go into the metadata of every state dict, so that :func:`farfield.repair.restore` finds them in
    whatever checkpoint the model ends up in.
    """

    def __init__(self, insertions: Sequence[Insertion] = ()) -> None:
        super().__init__()
        self.update({i.key: copy.deepcopy(i.module) for i in insertions})
        self.settings = json.dumps(
            [
                {
                    "place": i.place,
                    "at": i.at,
                    "kind": type(i.module).__name__,
                    "key": i.key,
                    "options": {name: getattr(i.module, name) for name in OPTIONS.get(type(i.module), ())},
                }
                for i in insertions
            ]
        )

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["insertions"] = self.settings

    def forward(self, value: Any) -> Any:
        """What came in."""
        return value


class _Inputs:
    """A forward pre-hook that sends arguments through their protections, given by position or by name."""

    def __init__(self, modules: Mapping[str, list[nn.Module]], names: Sequence[str]) -> None:
        self.modules = {alias: own for name, own in modules.items() for alias in both_names(name, names)}

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return None if _is_traced(args, kwargs) else self.protected(args, kwargs)

    def protected(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments behind their protections."""
        args = tuple(self._through(str(i), a) for i, a in enumerate(args))
        return args, {name: self._through(name, value) for name, value in kwargs.items()}

    def _through(self, name: str, value: Any) -> Any:
        for protection in self.modules.get(name, ()):
            value = protection(value)
        return value


class _Outputs:
    """A forward hook that sends what a module returns through protections, tensor by tensor."""

    def __init__(self, modules: Mapping[int, list[nn.Module]]) -> None:
        self.modules = dict(modules)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> Any:
        of_model = isinstance(module, Traceable)
        return output if of_model and isinstance(output, fx.Proxy) else self.protected(output)

    def protected(self, output: Any) -> Any:
        """What a module returned, behind its protections."""
        number = iter(range(1 << 30))

        def through(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor | fx.Proxy):
                return leaf
            for protection in self.modules.get(next(number), ()):
                leaf = protection(leaf)
            return leaf

        return map_leaves(through, output)


class Traceable:
    """Marks the class of a repaired model: its own, whose forward shows a tracer what stands at its two ends.

    ``torch.fx.symbolic_trace`` calls the class's forward and no hook, and would lose them without a word.
    """

    plain: type[nn.Module]


def _is_traced(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return any(isinstance(value, fx.Proxy) for value in (*args, *kwargs.values()))


@functools.cache
def _traceable(kind: type[nn.Module]) -> type[nn.Module]:
    @functools.wraps(kind.forward)
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not _is_traced(args, kwargs):
            return kind.forward(self, *args, **kwargs)
        for before in [hook for hook in self._forward_pre_hooks.values() if isinstance(hook, _Inputs)]:
            args, kwargs = before.protected(args, kwargs)
        output = kind.forward(self, *args, **kwargs)
        for behind in [hook for hook in self._forward_hooks.values() if isinstance(hook, _Outputs)]:
            output = behind.protected(output)
        return output

    def reduce(self: nn.Module, protocol: Any) -> Any:
        made: Any = kind.__reduce_ex__(self, protocol)
        ours = made[0] is copyreg.__newobj__ and made[1] == (type(self),)  # type: ignore[attr-defined]
        return (_empty, (kind,), *made[2:]) if ours else made  # by the class that a pickle finds

    names = {key: getattr(kind, key) for key in ("__module__", "__qualname__", "__doc__")}
    return type(
        kind.__name__,
        (Traceable, kind),
        {**names, "forward": forward, "__reduce_ex__": reduce, "plain": kind},
    )


def _empty(kind: type[nn.Module]) -> nn.Module:
    made = _traceable(kind)  # type: ignore[arg-type]
    return made.__new__(made)


def inserted_into(model: nn.Module, insertions: tuple[Insertion, ...]) -> nn.Module:
    """A deep copy of the model with the protections in place; the model given is not touched."""
    made = without_insertions(model)
    holder = Inserted(insertions)
    inputs: dict[str, list[nn.Module]] = {}
    outputs: dict[str, dict[int, list[nn.Module]]] = {}
    for insertion in insertions:
        module = holder[insertion.key]
        # Of this object alone: by it torch.fx knows what it need not enter.
        module.__module__ = "torch.nn.farfield"
        if insertion.place == "input":
            inputs.setdefault(insertion.at, []).append(module)
        elif insertion.place == "hidden":
            outputs.setdefault(insertion.at, {}).setdefault(0, []).append(module)
        else:
            outputs.setdefault("", {}).setdefault(int(insertion.at), []).append(module)
    name = PREFIX
    while name in made._modules:  # a program that was made of a repaired model
        name += "_again"
    if insertions:
        made.add_module(name, holder)
    if isinstance(made, fx.GraphModule):
        for insertion in insertions:
            insert_calls(made, insertion.place, insertion.at, f"{name}.{insertion.key}")
        made.recompile()
        return made
    if inputs:
        made.register_forward_pre_hook(_Inputs(inputs, argument_names(made)), with_kwargs=True)
    for path, modules in outputs.items():
        made.get_submodule(path).register_forward_hook(_Outputs(modules))
    for module in holder.modules():
        module.training = model.training
    if insertions:
        with suppress(
            TypeError
        ):  # a class that can't be derived from: it works as before, and can't be traced
            made.__class__ = _traceable(type(made))  # type: ignore[arg-type]
    return made


def without_insertions(model: nn.Module) -> nn.Module:
    """A deep copy of the model without what a repair put in."""
    made = copied(model)
    ours = {name: child for name, child in made._modules.items() if isinstance(child, Inserted)}
    if isinstance(made, fx.GraphModule) and ours:
        put_in = {module for holder in ours.values() for module in holder.children()}
        remove_calls(made, lambda module: module in put_in)
    for module in made.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for name in [n for n, hook in hooks.items() if isinstance(hook, _Inputs | _Outputs)]:
                del hooks[name]
                module._forward_pre_hooks_with_kwargs.pop(name, None)
    for key in ours:
        del made._modules[key]
    if (plain := getattr(type(made), "plain", None)) is not None and isinstance(made, Traceable):
        made.__class__ = plain
    return made
