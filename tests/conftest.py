"""Shape annotations are checked in every test; one torch thread and one seed for each; hypothesis profiles."""

import os

os.environ["FARFIELD_CHECK_SHAPES"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

from jaxtyping import install_import_hook

_SOURCE = Path(__file__).resolve().parent.parent / "src"
# Modules that annotate shapes. The others' types are mypy's affair: checking every call of theirs would take longer
# than the tests themselves.
_SHAPED = [
    ".".join(path.relative_to(_SOURCE).with_suffix("").parts)
    for path in sorted((_SOURCE / "farfield").rglob("*.py"))
    if "from farfield._typing import" in path.read_text(encoding="utf-8")
]
_hook = install_import_hook(_SHAPED, "shape_checking.typechecked")

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "farfield", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("farfield")


@pytest.fixture(autouse=True)
def _as_if_alone() -> None:
    """Layers made without a generator and sums are the same in every run, whichever tests came before."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
