"""Captured examples of operators, kept on disk: two suites and every run of them use the same programs.

A program is found under a hash of everything that decides it: the sources of ``graph`` (operators and their examples
are among them) and the versions of torch and Python. Whatever changes, a new folder begins; ``pytest --cache-clear``
removes all of them.
"""

import functools
import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import farfield
from farfield.graph import Program, capture, operator

KEPT = Path(__file__).resolve().parents[1] / ".pytest_cache" / "captured"


class Plain(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


@functools.cache
def place() -> Path:
    """The folder of programs that were captured by this very code; those of other code are removed."""
    digest = hashlib.sha256(f"{torch.__version__} {sys.version}".encode())
    for path in sorted((Path(farfield.__file__).parent / "graph").rglob("*.py")):
        digest.update(path.read_bytes())
    folder = KEPT / digest.hexdigest()[:32]
    if not folder.exists():
        shutil.rmtree(KEPT, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def kept(name: str, make: Callable[[], Program]) -> Program:
    """The program of this name, made where it is not on disk."""
    file = place() / name
    if file.exists():
        return pickle.loads(file.read_bytes())
    program = make()
    part = file.with_name(f"{name}.{os.getpid()}")
    part.write_bytes(pickle.dumps(program))
    part.replace(file)
    return program


@functools.cache
def program_of(name: str, index: int) -> Program:
    """An example of an operator."""
    example = operator(name).examples[index]
    return kept(
        f"{name}.{index}",
        lambda: capture(Plain(example.function), example.inputs(), dynamic_batch=False),
    )
