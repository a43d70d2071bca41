"""What several commands share: the model, and how it is loaded."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

__all__ = [
    "Arguments",
    "Builder",
    "Inputs",
    "Target",
    "Trust",
    "Weights",
    "draws_weights",
    "fail_conditions",
    "load_model",
    "model_words",
]

Trust: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Read a .pt2 file with torch.export.load, which can run code in it. Only for files you trust.",
    ),
]
Target: TypeAlias = Annotated[
    str | None,
    typer.Argument(help="pkg.mod:callable, file.py:Class, a .pt2 or .onnx file, or hf:<local folder>."),
]
Builder: TypeAlias = Annotated[
    str | None, typer.Option(help="The callable that builds the module; the same as naming it as TARGET.")
]
Weights: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="Weights for the module that is built: .safetensors, .pt, .pth, .bin or Lightning's .ckpt."
    ),
]
Arguments: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--arg", help="Argument of the callable: --arg width=256. Repeat for several."),
]
Inputs: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--input", help="Shape of an input, batch first: 1x8, 1x3x32x32, 1x16:int64. Repeat for several."
    ),
]


def fail_conditions(words: list[str], *others: str) -> set[str]:
    """What ``--fail-on`` names: codes of rules, verdicts and ``others``; ``unknown`` implies ``unbounded``."""
    from farfield.audit import rule_codes
    from farfield.errors import UnknownNameError

    allowed = ["unbounded", "unknown", *others, "none", *rule_codes()]
    given = [word.strip() for text in words for word in text.split(",")]
    wanted = [word.upper() if word.upper() in rule_codes() else word.lower() for word in given]
    for word in wanted:
        if word not in allowed:
            raise UnknownNameError("condition for --fail-on", word, allowed)
    return {*wanted, *(["unbounded"] if "unknown" in wanted else [])}


def load_model(
    target: str | None,
    builder: str | None = None,
    weights: Path | None = None,
    arguments: list[str] | None = None,
    *,
    trust: bool = False,
) -> tuple[Any, str]:
    """The model that the options name, and what to call it."""
    from farfield._target import load_target, named_arguments
    from farfield._weights import ProtectedWeightsError
    from farfield.errors import InvalidValueError

    if (target is None) == (builder is None):
        raise InvalidValueError("Give the model: a target, or --builder, and not both.")
    named = str(target if builder is None else builder)
    given = named_arguments(arguments or ())
    try:
        return load_target(named, trust=trust, weights=weights, arguments=given), named
    except ProtectedWeightsError:
        from farfield.repair import restore

        return restore(load_target(named, arguments=given), str(weights)), named


def model_words(
    target: str | None, builder: str | None, weights: Path | None, arguments: list[str] | None
) -> str:
    """The same options as they are typed, for a command that is suggested."""
    words = [str(target if builder is None else builder)]
    words += [] if weights is None else ["--weights", str(weights)]
    return shlex.join([*words, *(word for text in arguments or () for word in ("--arg", text))])


def draws_weights(model: Any, named: str, weights: Path | None, arguments: list[str] | None) -> bool:
    """Whether the callable makes other weights each time it is called; a certificate is of one set of them."""
    import torch
    from torch import nn

    from farfield._target import load_target, named_arguments

    if weights is not None or named.startswith("hf:") or not isinstance(model, nn.Module):
        return False
    again = load_target(named, arguments=named_arguments(arguments or ()))
    first, second = model.state_dict(), again.state_dict()
    return first.keys() == second.keys() and not all(torch.equal(first[k], second[k]) for k in first)
