"""Whole programs: a module that was exported has operations, not submodules, to put something behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, fx, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from farfield.errors import InvalidValueError
from farfield.graph import copied

__all__ = [
    "insert_calls",
    "operations",
    "place_path",
    "remove_calls",
    "with_places",
    "without_places",
]

_PLACE = "node_"


class PlaceHolder(nn.Module):
    """The identity: what stands behind one operation of a program, to be listened to."""

    def forward(self, value: Tensor) -> Tensor:
        """What came in."""
        return value


def operations(model: fx.GraphModule) -> dict[str, bool]:
    """Names of the operations that give rows of real numbers → whether they are linear maps."""
    return {node.name: _is_linear(node) for node in model.graph.nodes if _gives_rows(node)}


def _gives_rows(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return (
        node.op == "call_function"
        and isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim >= 2
    )


def _is_linear(node: fx.Node) -> bool:
    name = str(node.target)
    return any(word in name for word in ("linear", "mm", "matmul", "conv", "einsum"))


def with_places(model: fx.GraphModule, names: Sequence[str]) -> fx.GraphModule:
    """A copy with places behind these operations, as submodules ``node_<name>``."""
    made = copied(model)
    known = {node.name: node for node in made.graph.nodes if _gives_rows(node)}
    for path in map(place_path, names):
        name = path.removeprefix(_PLACE)
        if name not in known:
            raise InvalidValueError(
                f"at= names operations of the program; there is no {name!r}. There are: {', '.join(known)}."
            )
        if path not in dict(made.named_children()):
            made.add_submodule(path, PlaceHolder())
            _behind(made, known[name], path)
    made.recompile()
    return made


def place_path(name: str) -> str:
    """Path of the place behind an operation."""
    return name if name.startswith(_PLACE) else _PLACE + name


def _behind(model: fx.GraphModule, node: fx.Node, path: str) -> fx.Node:
    """Send what an operation gives through a submodule, for everyone who uses it."""
    with model.graph.inserting_after(node):
        call = model.graph.call_module(path, (node,))
    node.replace_all_uses_with(call, delete_user_cb=lambda user: user is not call)
    call.meta = {k: v for k, v in node.meta.items() if k == "val"}
    return call


def insert_calls(model: fx.GraphModule, place: str, at: str, path: str) -> None:
    """Call a submodule at an input, behind a place or at an output of a program; recompile it afterwards."""
    if place == "output":
        end = next(node for node in model.graph.nodes if node.op == "output")
        leaves, layout = tree_flatten(end.args[0])
        tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, fx.Node)]
        index = tensors[int(at)]
        with model.graph.inserting_before(end):
            leaves[index] = model.graph.call_module(path, (leaves[index],))
        end.args = (tree_unflatten(leaves, layout),)
        return
    if place == "hidden":
        (node,) = [n for n in model.graph.nodes if n.op == "call_module" and n.target == at]
    else:
        given = [n for n in model.graph.nodes if n.op == "placeholder"]
        node = given[int(at)] if at.isdigit() else next(n for n in given if at in (n.name, str(n.target)))
    later = [n for n in node.users if n.op == "call_module" and n.target == "_guards_fn"]
    call = _behind(model, node, path)
    for guard in later:  # what checks the inputs looks at what was given
        guard.replace_input_with(call, node)


def remove_calls(model: fx.GraphModule, is_ours: Callable[[nn.Module], bool]) -> None:
    """Take calls of some submodules out of a program."""
    for node in list(model.graph.nodes):
        if node.op == "call_module" and is_ours(model.get_submodule(str(node.target))):
            node.replace_all_uses_with(node.args[0])
            model.graph.erase_node(node)
    model.recompile()


def without_places(model: nn.Module) -> nn.Module:
    """A program without the places of :func:`with_places`; changed, not copied."""
    if isinstance(model, fx.GraphModule):
        remove_calls(model, lambda module: isinstance(module, PlaceHolder))
        for name in [n for n, child in model.named_children() if isinstance(child, PlaceHolder)]:
            delattr(model, name)
    return model
