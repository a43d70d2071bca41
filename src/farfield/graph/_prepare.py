"""The state a model is captured in, and the promise that it is left as it was found."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.export import ExportedProgram
from torch.nn.modules import transformer
from torch.utils._pytree import tree_map

from farfield.errors import InvalidValueError
from farfield.graph._state import ModelState
from farfield.graph._structure import opened
from farfield.graph._wrong_target import instead_of

__all__ = ["prepared", "quiet", "set_serving", "untouched", "unwrapped"]

_TALKERS = ("torch._export", "torch.onnx", "torch.export", "torch.fx", "torch._dynamo", "torch._subclasses")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence what torch says about its own internals while it traces; the user can do nothing about it."""
    loggers = [logging.getLogger(name) for name in _TALKERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        # A failed export prints its half-finished graph; the reason is in the exception.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def prepared(model: nn.Module) -> Iterator[ModelState]:
    """The model as it serves: eval mode, no gradients, no key-value cache, no fused encoder kernels.

    Records (dataclasses) that torch does not know are returned as dictionaries. Distributions do not check their
    arguments: a check reads values, which no tracer can follow. The fused kernels of
    ``nn.TransformerEncoderLayer`` are one opaque call; a cache adds inputs and outputs nobody asked about.
    Everything is put back afterwards: training flags, configuration, buffers, and what else ``forward`` changes,
    which the state that is yielded names.
    """
    with ExitStack() as stack:
        stack.enter_context(_without_cache(model))
        state = stack.enter_context(untouched(model))
        stack.enter_context(_plain_attention())
        stack.enter_context(_unchecked_distributions())
        stack.enter_context(_plain_conditions())
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        set_serving(model)
        if not isinstance(model, torch.jit.ScriptModule):  # scripted modules take no hooks

            def seen(module: nn.Module, given: Any, result: Any) -> Any:
                state.look()
                return opened(result)

            stack.callback(model.register_forward_hook(seen).remove)
        yield state


def set_serving(model: nn.Module) -> None:
    """Evaluation mode by the flags alone: a model's own ``eval`` may change weights (LoRA merges them there)."""
    if isinstance(model, torch.jit.ScriptModule):
        model.eval()
        return
    for module in model.modules():
        module.training = False


@contextmanager
def _plain_attention() -> Iterator[None]:
    """No fused encoder, and no look at a mask's values: causal or not, the mask itself is passed on."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    detect = transformer._detect_is_causal_mask
    torch.backends.mha.set_fastpath_enabled(False)
    transformer._detect_is_causal_mask = _as_told
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
        transformer._detect_is_causal_mask = detect


def _as_told(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """Whether the caller said that the mask is causal; torch's own function compares its entries."""
    return is_causal is True


@contextmanager
def _unchecked_distributions() -> Iterator[None]:
    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _plain_conditions() -> Iterator[None]:
    """``torch.cond`` as both its branches and a choice between them, which is what it computes."""
    before = torch.cond
    torch.cond = _both_branches
    try:
        yield
    finally:
        torch.cond = before


def _both_branches(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    if not isinstance(pred, Tensor):
        return (true_fn if pred else false_fn)(*operands)
    taken = pred.reshape(())
    return tree_map(lambda yes, no: torch.where(taken, yes, no), true_fn(*operands), false_fn(*operands))


@contextmanager
def _without_cache(model: nn.Module) -> Iterator[None]:
    """``config.use_cache = False`` on every module that has such a configuration (Hugging Face decoders)."""
    found = [getattr(module, "config", None) for module in model.modules()]
    configurations: list[Any] = [c for c in found if getattr(c, "use_cache", None) is True]
    for configuration in configurations:
        configuration.use_cache = False
    try:
        yield
    finally:
        for configuration in configurations:
            configuration.use_cache = True


@contextmanager
def untouched(model: nn.Module) -> Iterator[ModelState]:
    """Put back every module's attributes, flags, buffers and other state afterwards, however deep it lies."""
    state = ModelState(model)
    try:
        yield state
    finally:
        state.settle()


def unwrapped(model: Any) -> nn.Module | ExportedProgram:
    """The model inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``."""
    while isinstance(model, nn.Module):
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DataParallel", "DistributedDataParallel"):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner
    if not isinstance(model, ExportedProgram):
        raise InvalidValueError(instead_of(model))
    return model
