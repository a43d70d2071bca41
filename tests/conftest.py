"""Shape annotations are checked in every test; one torch thread and one seed for each; hypothesis profiles."""

import os

os.environ["FARFIELD_CHECK_SHAPES"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

from jaxtyping import install_import_hook

_hook = install_import_hook("farfield", "shape_checking.typechecked")

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile(
    "farfield", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("farfield")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Layers made without a generator are the same in every run, whichever tests came before."""
    torch.manual_seed(0)
