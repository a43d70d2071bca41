"""Peak memory, measured in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

import farfield

SOURCE = str(Path(farfield.__file__).resolve().parent.parent)
START = """
import resource, torch
torch.set_num_threads(1)
from farfield import kernels, regression

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

kernel = kernels.mlp(depth=2, layer_norm="first", bias_var=0.1)
generator = torch.Generator().manual_seed(0)

def rows(n):
    x = torch.randn(n, 4, generator=generator, dtype=torch.float64)
    return x, torch.sin(x[:, 0])
"""


def measured(code):
    environment = {k: v for k, v in os.environ.items() if k != "FARFIELD_CHECK_SHAPES"}
    environment["PYTHONPATH"] = SOURCE
    done = subprocess.run(
        [sys.executable, "-c", START + code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(value) for value in done.stdout.split()]


def test_cholesky_holds_one_matrix():
    (ratio, residual) = measured("""
x, y = rows(4000)
regression.fit(kernel, x[:1000], y[:1000], noise=0.1)
before = peak()
f = regression.fit(kernel, x, y, noise=0.1)
f.smallest_eigenvalue()
print((peak() - before) / (8 * 4000**2), f.residual)
""")
    assert ratio <= 1.25, ratio
    assert residual < 1e-10


def test_conjugate_gradients_hold_no_matrix():
    (ratio, residual) = measured("""
x, y = rows(4000)
regression.fit(kernel, x[:300], y[:300], noise=0.1, solver="pcg", rank=50, memory="20MB")
before = peak()
f = regression.fit(kernel, x, y, noise=0.1, solver="pcg", rank=50, memory="20MB", tolerance=1e-3)
print((peak() - before) / (8 * 4000**2), f.residual)
""")
    assert ratio < 0.4, ratio
    assert residual < 1e-3


def test_a_stream_holds_what_does_not_depend_on_its_length():
    (grown,) = measured("""
x, _ = rows(100)
model = regression.Nystrom(kernel, x)

def feed(batches):
    for _ in range(batches):
        model.partial_fit(*rows(5000))

feed(4)
before = peak()
feed(60)
print((peak() - before) / (300_000 * 5 * 8))
""")
    assert grown < 0.3, grown
