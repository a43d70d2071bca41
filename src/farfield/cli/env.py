"""``farfield env``: what is installed here, for bug reports and for finding out what an extra would add."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["env"]

_EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "plot": ("figures: .plot() of results, --plot, reproduce", ("matplotlib",)),
    "sklearn": ("estimators: StableMLPRegressor, NTKRegressor and others", ("scikit-learn",)),
    "gpytorch": ("kernels for GPyTorch", ("gpytorch",)),
    "ray": ("work on several machines: --engine ray", ("ray", "pyarrow")),
    "data": ("datasets by name, Parquet files", ("pooch", "pyarrow", "pillow")),
    "lightning": ("monitors as a Lightning callback", ("lightning",)),
    "sb3": ("monitors as a Stable-Baselines3 callback", ("stable-baselines3",)),
    "onnx": (".onnx files", ("onnx", "onnxscript")),
    "transformers": ("local folders of transformers: hf:<folder>", ("transformers",)),
    "trees": ("the tree baseline of reproduce p1", ("xgboost-cpu",)),
    "certify": (".safetensors files: weights, certificates in their header", ("safetensors",)),
    "fast": ("large kernel matrices in half the time", ("numba",)),
    "vision": ("image backbones of reproduce p1", ("torchvision", "pillow")),
}
"""Extra → what it adds, and the packages that it installs."""


def _collect() -> dict[str, Any]:
    import os
    import platform

    import torch

    from farfield import __version__
    from farfield._provenance import version

    return {
        "farfield": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "cuda": torch.cuda.is_available(),
        "numpy": version("numpy"),
        "data_folder": os.environ.get("FARFIELD_DATA"),
        "extras": {name: {p: version(p) for p in packages} for name, (_, packages) in _EXTRAS.items()},
    }


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print versions, threads and devices, what each optional extra adds, and how to install it."""
    facts = _collect()
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for key, value in facts.items():
        if key != "extras":
            typer.echo(f"{key:12} {value if value is not None else 'not set'}")
    for name, packages in facts["extras"].items():
        typer.echo(f"{'[' + name + ']':15} {_EXTRAS[name][0]}")
        have = ", ".join(f"{p} {v}" for p, v in packages.items() if v)
        # Quoted: zsh takes brackets for a pattern.
        missing = "" if all(packages.values()) else f"pip install 'farfield[{name}]'"
        typer.echo(f"{'':15} {'; '.join(filter(None, [have, missing]))}")
