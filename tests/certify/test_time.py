"""What comes after a search is paid for from the same budget. Time here is a number that the tests move."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from certify.networks import network
from certify.regions import random_region
from farfield import Budget, _budget
from farfield.certify import _checks, _solve
from farfield.certify._checks import Checks
from farfield.certify._proofs import DualProof, IntervalProof
from farfield.certify._search import attained
from farfield.certify._solve import published, solve
from farfield.certify._task import Task
from farfield.certify.cells import branch
from farfield.certify.checker import proof_reader
from farfield.graph import capture

F64 = torch.float64
SEARCH_END, CHECK = 0.3, 0.5
"""Seconds from the end of a search to its proof, and to check it."""


class _Run:
    """A solved task, with searches and checks that take a known time."""

    def __init__(self, monkeypatch, outputs: int, seconds: float) -> None:
        self.now, self.searched, self.checked = 0.0, [], []
        torch.manual_seed(0)
        layers = nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, outputs)
        program = capture(
            nn.Sequential(*layers).double().eval(), torch.zeros(1, 6, dtype=F64), dynamic_batch=False
        )
        name = program.outputs[0]
        task = Task.over(program, name, {"kind": "all"})
        found = attained(
            program, name, time_budget=Budget(steps=2), generator=torch.Generator().manual_seed(0)
        )
        monkeypatch.setattr(_budget, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(_solve, "provers", lambda case: [(self._search, 1.0)])
        monkeypatch.setattr(_checks, "proof_reader", lambda *_: self._read)
        clock = Budget(seconds=seconds).start()
        self.solution = solve(task, found, clock, clock, lambda _: None, {})

    def _search(self, case, key, best, clock):
        self.searched.append(clock.seconds_left)
        self.now += clock.seconds_left + SEARCH_END
        return DualProof(*key, best.bound / 2, 0.0, {}, {}, {}, (), torch.zeros(1, 1)), None

    def _read(self, proof):
        if proof["kind"] == "dual":
            self.now += CHECK
            self.checked.append(proof["output"])
        return proof["bound"]


@pytest.mark.parametrize(("outputs", "seconds"), [(1, 10.0), (4, 10.0), (10, 20.0)])
def test_checks_are_paid_for_where_there_is_time_for_all(monkeypatch, outputs, seconds):
    run = _Run(monkeypatch, outputs, seconds)
    assert run.now <= 1.02 * seconds
    assert len(run.searched) == len(run.checked) == 2 * outputs
    assert all(isinstance(p, DualProof) for p in run.solution.proofs.values())
    assert sum(run.searched) >= seconds - 2 * outputs * (SEARCH_END + CHECK) - 1e-9


def test_where_there_is_no_time_for_all_sides_some_have_a_proof_and_the_time_is_kept(monkeypatch):
    run = _Run(monkeypatch, 10, 10.0)
    assert run.now <= 10.0 + SEARCH_END + CHECK
    kinds = [type(p) for p in run.solution.proofs.values()]
    assert kinds.count(DualProof) == len(run.checked) >= 10
    assert kinds.count(IntervalProof) == 20 - len(run.checked)


def _nearly_constant():
    """Norms of two features amplify every rounding: over this box the network is constant to the last digits."""
    model, dim, _ = network(67, largest=64, deepest=4)
    domain, _ = random_region(67, dim)
    program = capture(model, torch.zeros(1, dim, dtype=F64), dynamic_batch=False)
    task = Task.over(program, program.outputs[0], domain)
    searched = task.network
    proof, _ = branch(searched, 0, 1, time_budget=Budget(steps=2), tolerance=0.0)
    return task, proof


def test_cells_that_nobody_checks_get_room_for_the_checkers_rounding():
    task, proof = _nearly_constant()
    checks = Checks(task, Budget(seconds=0.0).start())
    checks.run((0, 1), (proof,), 1.0)
    made = checks.proofs[0, 1]
    read = proof_reader(task.model, task.output, task.domain)
    assert read(proof.to_dict()) > published(proof.bound), "without room the certificate is refused"
    assert read(made.to_dict()) <= published(made.bound)
    assert made.bound - proof.bound < 1e-4 * abs(proof.bound)


def test_checking_cells_ends_with_the_time():
    task, proof = _nearly_constant()
    asked = []

    def stop():
        asked.append(1)
        return len(asked) > 3

    found = proof_reader(task.model, task.output, task.domain, stop)(proof.to_dict())
    assert len(asked) == 4
    assert found >= proof.attained


def test_a_check_that_the_time_ends_says_nothing_against_the_search(monkeypatch):
    task, proof = _nearly_constant()

    class Running:
        left = iter([1.0, 0.0, 0.0])
        seconds_left = property(lambda self: next(self.left))

    monkeypatch.setattr(
        _checks, "proof_reader", lambda *_: lambda data: 1.0 if data["kind"] == "cells" else 0.0
    )
    checks = Checks(task, Running())
    checks.run((0, 1), (proof,), 0.0)
    assert checks.proofs[0, 1] == proof
