"""Fingerprints: the same for equal content in any process, different for one bit."""

import enum
import functools
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import farfield
from farfield.engine import Tile, fingerprint
from farfield.errors import InvalidValueError


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Settings:
    depth: int
    weights: torch.Tensor


@dataclass(frozen=True)
class Other:
    depth: int
    weights: torch.Tensor


@dataclass
class Mutable:
    depth: int


ONE = torch.ones(2, 3)
DIFFERENT = [
    (),
    (None,),
    ((),),
    ([],),
    ({},),
    (frozenset(),),
    (0,),
    (False,),
    (0.0,),
    (-0.0,),
    (float("nan"),),
    (0j,),
    ("",),
    ("0",),
    (b"0",),
    ("a", "b"),
    ("ab",),
    (("a", "b"),),
    (["a", "b"],),
    ({"a": 1, "b": 2},),
    ({"a": 2, "b": 1},),
    ({"a", "b"},),
    (10**30,),
    (np.float64(1.0),),
    (np.float32(1.0),),
    (np.ones((2, 3)),),
    (np.ones((3, 2)),),
    (ONE,),
    (ONE.double(),),
    (ONE.to(torch.bfloat16),),
    (ONE.mT.contiguous(),),
    (torch.nextafter(ONE, ONE + 1),),
    (torch.empty(0),),
    (torch.empty(0, 1),),
    (torch.tensor(True),),
    (torch.tensor(1 + 2j),),
    (torch.tensor(1 - 2j),),
    (torch.float32,),
    (torch.float64,),
    (Color.RED,),
    (Color.BLUE,),
    (Tile((0, 1), (0, 2)),),
    (Tile((0, 2), (0, 1)),),
    (Settings(1, ONE),),
    (Settings(2, ONE),),
    (Settings(1, ONE + 1),),
    (Other(1, ONE),),
    (Settings,),
    (fingerprint,),
    (abs,),
    (functools.partial(fingerprint, 1),),
    (functools.partial(fingerprint, 2),),
]


def test_different_values_have_different_fingerprints():
    found = [fingerprint(*parts) for parts in DIFFERENT]
    assert len(set(found)) == len(found)
    assert all(len(f) == 64 for f in found)


def test_equal_content_has_the_same():
    x = torch.arange(12.0).reshape(3, 4)
    assert fingerprint(x.mT) == fingerprint(x.mT.contiguous()) == fingerprint(x.mT.clone())
    assert fingerprint(x[1]) == fingerprint(torch.arange(4.0, 8.0))
    assert fingerprint(torch.tensor([1 + 2j]).conj()) == fingerprint(torch.tensor([1 - 2j]))
    assert fingerprint(x.requires_grad_()) == fingerprint(x.detach())
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({3, 1, 2}) == fingerprint({2, 3, 1})
    assert fingerprint(np.arange(6).reshape(2, 3).T) == fingerprint(np.arange(6).reshape(2, 3).T.copy())


def test_the_same_in_another_process():
    code = (
        "import torch\nfrom farfield.engine import fingerprint, Tile\n"
        "print(fingerprint({'b', 'a', 'c'}, {'x': 1.5}, torch.arange(3), Tile((0, 1), (0, 2)), fingerprint))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(farfield.__file__).parents[1]), "PYTHONHASHSEED": "7"}
    environment.pop("FARFIELD_CHECK_SHAPES", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    here = fingerprint({"b", "a", "c"}, {"x": 1.5}, torch.arange(3), Tile((0, 1), (0, 2)), fingerprint)
    assert done.stdout.strip() == here


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda x: x,
        Mutable(1),
        np.array([object()]),
        torch.nn.Linear(1, 1),
        torch.ones(2).to_sparse(),
    ],
    ids=["object", "lambda", "mutable", "objects", "module", "sparse"],
)
def test_what_has_no_stable_content_is_refused(value):
    with pytest.raises(InvalidValueError, match="the same in every process"):
        fingerprint("x", [value])
