"""Protections put into a copy of a model: same class, same weights under the same names. A program is rewritten."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, fx, nn

from farfield.calibration import argument_names, both_names, map_leaves
from farfield.graph import copied
from farfield.nn import FeatureClamp, NormCap, RangeHead
from farfield.repair._program import insert_calls, remove_calls

__all__ = ["OPTIONS", "PREFIX", "Inserted", "Insertion", "inserted_into", "without_insertions"]

PREFIX = "farfield_repair"
"""Name of the submodule that holds what was inserted."""
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
        number = iter(range(1 << 30))

        def through(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            for protection in self.modules.get(next(number), ()):
                leaf = protection(leaf)
            return leaf

        return map_leaves(through, output)


def inserted_into(model: nn.Module, insertions: tuple[Insertion, ...]) -> nn.Module:
    """A deep copy of the model with the protections in place; the model given is not touched."""
    made = without_insertions(model)
    holder = Inserted(insertions)
    inputs: dict[str, list[nn.Module]] = {}
    outputs: dict[str, dict[int, list[nn.Module]]] = {}
    for insertion in insertions:
        module = holder[insertion.key]
        if insertion.place == "input":
            inputs.setdefault(insertion.at, []).append(module)
        elif insertion.place == "hidden":
            outputs.setdefault(insertion.at, {}).setdefault(0, []).append(module)
        else:
            outputs.setdefault("", {}).setdefault(int(insertion.at), []).append(module)
    if insertions:
        made.add_module(PREFIX, holder)
    if isinstance(made, fx.GraphModule):
        for insertion in insertions:
            insert_calls(made, insertion.place, insertion.at, f"{PREFIX}.{insertion.key}")
        made.recompile()
        return made
    if inputs:
        made.register_forward_pre_hook(_Inputs(inputs, argument_names(made)), with_kwargs=True)
    for path, modules in outputs.items():
        made.get_submodule(path).register_forward_hook(_Outputs(modules))
    for module in holder.modules():
        module.training = model.training
    return made


def without_insertions(model: nn.Module) -> nn.Module:
    """A deep copy of the model without what a repair put in."""
    made = copied(model)
    if isinstance(made, fx.GraphModule) and PREFIX in made._modules:
        ours = set(made.get_submodule(PREFIX).children())
        remove_calls(made, lambda module: module in ours)
    for module in made.modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for name in [n for n, hook in hooks.items() if isinstance(hook, _Inputs | _Outputs)]:
                del hooks[name]
                module._forward_pre_hooks_with_kwargs.pop(name, None)
    if PREFIX in made._modules:
        del made._modules[PREFIX]
    return made
