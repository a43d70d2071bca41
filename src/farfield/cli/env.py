"""``farfield env``: what is installed here, for bug reports and for finding out what an extra would add."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

__all__ = ["env"]

_EXTRAS = {
    "plot": ("matplotlib",),
    "sklearn": ("scikit-learn",),
    "gpytorch": ("gpytorch",),
    "ray": ("ray",),
    "data": ("pooch", "pyarrow", "pillow"),
    "lightning": ("lightning",),
    "transformers": ("transformers",),
    "trees": ("xgboost-cpu",),
    "certify": ("safetensors",),
}


def _collect() -> dict[str, Any]:
    import os
    import platform
    from importlib import metadata

    import torch

    from farfield import __version__

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

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
        "extras": {name: {p: version(p) for p in packages} for name, packages in _EXTRAS.items()},
    }


def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Versions, threads, devices, and which optional extras are installed."""
    facts = _collect()
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for key, value in facts.items():
        if key != "extras":
            typer.echo(f"{key:12} {value if value is not None else 'not set'}")
    for name, packages in facts["extras"].items():
        have = ", ".join(f"{p} {v}" for p, v in packages.items() if v)
        typer.echo(f"{'[' + name + ']':15} {have or f'not installed: pip install farfield[{name}]'}")
