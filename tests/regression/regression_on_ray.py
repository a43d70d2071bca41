"""Regression on a cluster of two workers: the same bits as here, and runs that go on after a stop."""

import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine_tasks import identical
from farfield.engine import Checkpoint, fingerprint, ray
from farfield.regression import Nystrom, fit, predict_parquet, stream_parquet
from parquet_tables import columns, write
from ray_tests import require_namespace
from regression_problems import data, network, queries


@pytest.fixture(scope="module")
def cluster():
    require_namespace()
    with ray(workers=2) as engine:
        yield engine


@dataclass(frozen=True)
class DiesOnce:
    """A kernel whose worker is gone when it meets the first piece of more than 100 rows."""

    mark: Path

    @property
    def inner(self):
        return network().function("ntk")

    def __call__(self, x1, x2=None):
        if len(x1) > 100:
            with contextlib.suppress(FileExistsError):
                self.mark.touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x1, x2)

    def diagonal(self, x):
        return self.inner.diagonal(x)

    def sup_diagonal(self):
        return self.inner.sup_diagonal()


def settings(**more):
    return {"noise": 0.1, "solver": "pcg", "rank": 40, "tolerance": 1e-6, **more}


def test_conjugate_gradients(cluster):
    x, y = data(400, 4, k=2)
    here = fit(network(), x, y, **settings())
    for keep in (False, True):
        there = fit(network(), x, y, engine=cluster, keep_tiles=keep, **settings())
        assert identical(here.weights, there.weights) and there.residual <= 1e-6
    q = queries(50, 4)
    assert identical(here.mean(q), there.mean(q)) and identical(here.variance(q[:4]), there.variance(q[:4]))
    q.requires_grad_()
    (slope,) = torch.autograd.grad(there.mean(q).sum(), q)
    assert slope.abs().sum() > 0, "a gradient is computed here"


class StopError(Exception):
    pass


def test_conjugate_gradients_go_on(cluster, tmp_path):
    x, y = data(400, 4)
    here = fit(network(), x, y, **settings())
    checkpoint = Checkpoint(tmp_path, fingerprint("pcg"))

    def stop(done, total):
        if done == 4:
            raise StopError

    with pytest.raises(StopError):
        fit(network(), x, y, engine=cluster, checkpoint=checkpoint, progress=stop, **settings())
    seen = []
    there = fit(
        network(),
        x,
        y,
        engine=cluster,
        checkpoint=checkpoint,
        progress=lambda *at: seen.append(at),
        **settings(),
    )
    assert seen[0][0] == 4 and identical(here.weights, there.weights)


def test_cholesky(cluster):
    x, y = data(200, 4)
    here, there = (fit(network(), x, y, noise=1e-2, engine=where) for where in ("local", cluster))
    assert identical(here.weights, there.weights)


def test_nystrom_from_parquet_with_a_death(cluster, tmp_path):
    x, y = data(5000, 4, k=2)
    write(tmp_path / "rows", x, y, files=3, group=300)
    inputs, targets = columns(4), ["y0", "y1"]
    mark = tmp_path / "mark"
    mark.touch()
    here = stream_parquet(Nystrom(DiesOnce(mark), x[:60]), tmp_path / "rows", inputs, targets, rows=600)
    mark.unlink()
    told = []
    there = stream_parquet(
        Nystrom(DiesOnce(mark), x[:60]), tmp_path / "rows", inputs, targets, rows=600, engine=cluster,
        checkpoint=tmp_path / "resume", progress=lambda *at: told.append(at),
    )  # fmt: skip
    assert mark.exists(), "no worker died"
    assert all(identical(a, b) for a, b in zip(here._sums[:3], there._sums[:3], strict=True))
    assert there.count == 5000 and told[-1] == (9, 9)
    f = there.solve(1e-2)
    one, two = (
        predict_parquet(f, tmp_path / "rows", inputs, tmp_path / name, engine=where, rows=600)
        for name, where in (("here", "local"), ("there", cluster))
    )
    assert [p.name for p in one] == [p.name for p in two] and len(one) == 9
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(one, two, strict=True))


def test_nystrom_from_a_stream(cluster):
    x, y = data(900, 4)
    batches = [(x[i : i + 100], y[i : i + 100]) for i in range(0, 900, 100)]
    here, there = (Nystrom(network(), x[:50]).stream(iter(batches), engine=e) for e in ("local", cluster))
    assert identical(here.solve(1e-2).weights, there.solve(1e-2).weights)
