"""What a model keeps from one call to the next: named where a call changes it, and put back.

State lies in buffers, in plain attributes, in dictionaries and lists within those, in arrays, in objects of the
model's own classes and on the classes themselves. A capture follows one call; what that call leaves behind for the
next is no part of the program.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["ModelState"]

LARGEST = 200_000
"""Values looked at: a model that holds its own data set is not walked to the end."""
_TABLES = ("_buffers", "_parameters", "_modules")
_OWN = frozenset(vars(nn.Module())) - {*_TABLES}
"""Attributes of every module: training flags and hooks, which a capture sets itself."""
_PLAIN = (int, float, complex, str, bytes, type(None), torch.Size, torch.dtype, torch.device)
_CONTAINERS = (dict, list, set, deque)
_FOREIGN = ("torch", "builtins", "numpy", "functools", "typing", "abc", "enum", "farfield")


@dataclass(frozen=True)
class _Holder:
    """Something that can change: where it is, what it is, and what was in it."""

    path: str
    value: Any
    content: Any
    ignored: frozenset[Any] = _OWN


class ModelState:
    """The state of a model as it was when this was made.

    Attributes, containers however deep, and tensors that are no parameters are remembered; tensors and arrays by a
    copy. State in global variables is not seen.

    Parameters
    ----------
    model
        The module; not changed.

    Attributes
    ----------
    changed
        Names of what was different at any call of :meth:`settle`, in order: ``"encoder.cache['h']"``.
    """

    def __init__(self, model: nn.Module) -> None:
        self.changed: dict[str, None] = {}
        self._holders: list[_Holder] = []
        self._seen: set[int] = set()
        modules = dict(model.named_modules())
        self._seen.update(map(id, modules.values()))
        for path, module in modules.items():
            self._attributes(module, f"{path}." if path else "")
        for cls in dict.fromkeys(base for module in modules.values() for base in type(module).__mro__):
            if not _is_foreign(cls):
                self._attributes(cls, f"{cls.__name__}.")

    def look(self) -> None:
        """Add what attributes and containers hold now, and did not before, to ``changed``.

        While torch.export traces, fake parameters stand in place of the model's; they are no change.
        """
        for holder in self._holders:
            if not isinstance(holder.value, Tensor | np.ndarray):
                self._note(holder)

    def settle(self, *, traced: bool = False) -> None:
        """Put everything back as it was, and add what was different to ``changed``.

        Parameters
        ----------
        traced
            A tracer ran, which leaves things of its own: only tensors and arrays that were written into are noted.
        """
        for holder in self._holders:
            if not traced or isinstance(holder.value, Tensor | np.ndarray):
                self._note(holder)
            if _differences(holder.content, _content(holder.value)):
                _put_back(holder.value, holder.content)

    def _note(self, holder: _Holder) -> None:
        for key in _differences(holder.content, _content(holder.value), weights=False):
            if key not in holder.ignored:
                said = "" if key is None else _named(key, holder.path)
                self.changed[holder.path + said] = None

    def _attributes(self, owner: Any, prefix: str) -> None:
        values = _content(_Attributes(owner))
        # What torch's own hooks compute anew before every call (a weight from its norm and direction) is no state.
        hooks = values.get("_forward_pre_hooks", {}).values()
        written = {
            getattr(hook, "name", None) for hook in hooks if type(hook).__module__.startswith("torch.")
        }
        self._holders.append(_Holder(prefix, _Attributes(owner), values, _OWN | written))
        for name, value in values.items():
            if name in _TABLES:  # what is registered there is named by those who read it
                if not isinstance(value, dict):  # a scripted module's, which no program holds
                    continue
                self._holders.append(_Holder(prefix, value, _content(value), frozenset(value)))
                for key, part in value.items():
                    self._walk(part, prefix + key)
            elif name not in _OWN:
                self._walk(value, prefix + name)

    def _walk(self, value: Any, path: str) -> None:
        if isinstance(value, (*_PLAIN, type, nn.Parameter)) or id(value) in self._seen:
            return
        if len(self._seen) > LARGEST:
            return
        self._seen.add(id(value))
        if isinstance(value, Tensor):
            if type(value) is Tensor and not value.is_meta and value.layout == torch.strided:
                self._holders.append(_Holder(path, value, value.detach().clone()))
        elif isinstance(value, np.ndarray):
            self._holders.append(_Holder(path, value, value.copy()))
        elif isinstance(value, (*_CONTAINERS, tuple, Mapping)):
            if isinstance(value, _CONTAINERS):
                self._holders.append(_Holder(path, value, _content(value)))
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, part in list(pairs):
                self._walk(part, path + _named(key, path))
        elif isinstance(value, nn.Module) or (hasattr(value, "__dict__") and not _is_foreign(type(value))):
            self._attributes(value, f"{path}.")


@dataclass(frozen=True)
class _Attributes:
    """The attributes of an object; of a class only data, never its methods."""

    owner: Any

    def now(self) -> dict[str, Any]:
        if not isinstance(self.owner, type):
            return dict(vars(self.owner))
        data = (*_PLAIN, *_CONTAINERS, Tensor, np.ndarray)
        return {k: v for k, v in vars(self.owner).items() if isinstance(v, data) and not k.startswith("__")}


def _is_foreign(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _FOREIGN


def _named(key: Any, path: str) -> str:
    """A key as it is written behind its container's path, which ends with a dot where keys are attributes."""
    return str(key) if not path or path.endswith(".") else f"[{key!r}]"


def _content(value: Any) -> Any:
    """What is in a container now; a tensor or an array is its own content."""
    if isinstance(value, _Attributes):
        return value.now()
    return value if isinstance(value, Tensor | np.ndarray) else value.copy()


def _differences(old: Any, now: Any, *, weights: bool = True) -> list[Any]:
    """The keys at which the two differ; of what has no keys, ``[None]``. Parameters can be left out."""
    if isinstance(old, dict):
        keys = dict.fromkeys([*old, *now])
        return [k for k in keys if k not in old or k not in now or not _is_equal(old[k], now[k], weights)]
    if isinstance(old, Tensor | np.ndarray):
        same = old.shape == now.shape and old.dtype == now.dtype and _same_bits(old, now)
    else:
        same = old == now if isinstance(old, set) else _is_equal(list(old), list(now), weights)
    return [] if same else [None]


def _is_equal(a: Any, b: Any, weights: bool = True) -> bool:
    if a is b or (isinstance(a, (nn.Parameter, weakref.ref)) and not weights):
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple) and not isinstance(a, torch.Size):
        return len(a) == len(b) and all(_is_equal(x, y, weights) for x, y in zip(a, b, strict=True))
    return isinstance(a, _PLAIN) and bool(a == b or a != a)


def _same_bits(old: Any, now: Any) -> bool:
    if isinstance(old, np.ndarray):
        return bool(old.tobytes() == now.tobytes())
    return bool(torch.equal(old, now) or ((old == now) | (old.isnan() & now.isnan())).all())


def _put_back(value: Any, content: Any) -> None:
    if isinstance(value, _Attributes):
        _set_attributes(value, content)
    elif isinstance(value, Tensor):
        with torch.no_grad():
            if value.shape == content.shape and value.dtype == content.dtype:
                value.copy_(content)
            else:
                value.data = content.clone()
    elif isinstance(value, np.ndarray):
        value[...] = content
    else:
        value.clear()
        value.extend(content) if isinstance(value, list | deque) else value.update(content)


def _set_attributes(holder: _Attributes, content: Mapping[str, Any]) -> None:
    """The attributes of an object, past what its class does when one is set; of a class by the ordinary way."""
    if not isinstance(holder.owner, type):
        vars(holder.owner).clear()
        vars(holder.owner).update(content)
        return
    for name in _differences(content, holder.now()):
        if name in content:
            setattr(holder.owner, name, content[name])
        else:
            delattr(holder.owner, name)
