"""Compiled entries: their arcsines against mpmath, and whole matrices against torch's and layer by layer."""

import importlib.util
import math
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import mpmath
import numpy as np
import pytest
import torch

import farfield
from farfield import kernels
from farfield.errors import InvalidValueError
from farfield.kernels import _block, _network
from kernels.hard_inputs import hard_rows

compiled = pytest.importorskip(
    "farfield.kernels._compiled", reason="numba is not installed", exc_type=ImportError
)

IDENTITY = (0.0, 1.0, 0.0, 0.0)


def _grid() -> np.ndarray:
    near = 1 - np.logspace(-5, -1, 200)
    return np.concatenate([np.linspace(-0.9999, 0.9999, 2001), near, -near, [0.0, 0.5, -0.5, 1e-9]])


@pytest.mark.full
def test_the_arcsine_to_the_last_digits():
    t = _grid()
    out = np.empty_like(t)
    assert compiled.wide(t, out, np.array(IDENTITY), 1.0) == 0
    truth = np.array([float(mpmath.asin(v)) for v in t])
    assert np.abs(out - truth).max() < 3e-16
    small = np.abs(t) < 0.4
    assert (np.abs(out - truth) <= 4e-16 * np.abs(truth))[small].all()


@pytest.mark.full
def test_half_angles_in_single_precision():
    theta = np.concatenate(
        [np.linspace(0, np.pi, 3001), np.logspace(-6, 0, 100), np.pi - np.logspace(-6, 0, 100)]
    )
    out = np.empty(len(theta), dtype=np.float32)
    squares = np.array([float(mpmath.sin(mpmath.mpf(v) / 2) ** 2) for v in theta])
    compiled.narrow(squares, out, np.array(IDENTITY, dtype=np.float32))
    assert np.abs(out.astype(float) - (theta / 2 - np.pi / 4)).max() < 1.3e-7
    # Rounding may carry sin² past either end.
    compiled.narrow(np.array([-1e-16, 1 + 1e-15]), out[:2], np.array(IDENTITY, dtype=np.float32))
    assert out[:2].tolist() == pytest.approx([-math.pi / 4, math.pi / 4], abs=1e-7)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 513, 1500])
@pytest.mark.parametrize("degree", [0, 1, 3, 4, 22])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_polynomials_of_any_degree_and_size(size, degree, dtype):
    draw = np.random.default_rng([size, degree])
    terms, w = draw.normal(size=degree + 1).astype(dtype), draw.uniform(-1, 1, size).astype(dtype)
    truth = np.polynomial.polynomial.polyval(w.astype(float), terms.astype(float))
    compiled.polynomial(w, w, compiled.padded(terms))
    assert np.abs(w - truth).max(initial=0) <= 10 * np.finfo(dtype).eps * np.abs(terms).sum()


def test_what_is_not_clear_is_counted_and_left_out():
    t = np.array([0.1, 0.99, np.nan, -1.0, -0.2, 1.0000001, 0.9899])
    out = np.empty_like(t)
    assert compiled.wide(t, out, np.array(IDENTITY), 0.99) == 4
    assert np.isnan(out).tolist() == [False, True, True, True, False, True, False]


NETWORKS = {
    "depth 1": kernels.mlp(depth=1, layer_norm="first", bias_var=0.1),
    "depth 2": kernels.mlp(depth=2, layer_norm="first", bias_var=0.01),
    "depth 30, with a map of the angle": kernels.mlp(depth=30, layer_norm="first", bias_var=0.01),
    "no norm, homogeneous": kernels.mlp(depth=3, layer_norm=None, bias_var=0.0),
    "erf": kernels.mlp(depth=2, layer_norm="every", bias_var=0.1, activation="erf"),
}


@pytest.fixture
def always(monkeypatch):
    """Compiled code for the smallest job too."""
    monkeypatch.setattr(_network, "_MANY", 0)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_same_as_layer_by_layer_on_hard_rows(name, kind, symmetric, always):
    k, x = NETWORKS[name], hard_rows()
    plain = kernels.NetworkKernel(k.layers, compress=False)
    other = None if symmetric else x.flip(0)[:7].clone()
    value, truth = (getattr(network, kind)(x, other) for network in (k, plain))
    scale = (k.diagonal(x, kind)[:, None] * k.diagonal(x if symmetric else other, kind)).sqrt()
    assert float(((value - truth).abs() / scale).max()) < 2e-12
    low = getattr(k, kind)(x.float(), None if symmetric else other.float())
    exact = getattr(plain, kind)(x.float().double(), None if symmetric else other.float().double())
    assert low.dtype == torch.float32
    assert float(((low - exact).abs() / scale).max()) < 3e-6


def test_the_map_is_tried_too():
    assert NETWORKS["depth 30, with a map of the angle"].table("ntk").strength < math.inf
    assert NETWORKS["depth 2"].table("ntk").strength == math.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["depth 2", "depth 30, with a map of the angle"])
def test_torch_and_numba_agree_into_part_of_a_matrix(dtype, name, monkeypatch):
    draw = torch.Generator().manual_seed(1)
    x, z = (torch.randn(n, 6, generator=draw, dtype=dtype) for n in (700, 90))
    x[5], x[6] = z[3], -z[4]
    by_torch = NETWORKS[name].ntk(x, z)
    monkeypatch.setattr(_network, "_MANY", 0)
    whole = torch.zeros(700, 200, dtype=dtype)
    NETWORKS[name].ntk(x, z, out=whole[:, 50:140])
    tolerance = 1e-14 if dtype == torch.float64 else 2e-6
    assert float((whole[:, 50:140] - by_torch).abs().max()) < tolerance * float(by_torch.max())
    assert not whole[:, :50].any() and not whole[:, 140:].any()
    # A part of the rows has the same last digits.
    assert torch.equal(NETWORKS[name].ntk(x[100:300], z), whole[100:300, 50:140])


def test_small_matrices_go_without(monkeypatch):
    k, rows = NETWORKS["depth 2"], NETWORKS["depth 2"]._rows(hard_rows())
    assert not k._task("ntk", rows, rows, torch.float64).compiled
    monkeypatch.setattr(_network, "_MANY", len(rows) ** 2)
    assert k._task("ntk", rows, rows, torch.float64).compiled


@pytest.mark.parametrize("fault", ["not there", "broken", "switched off"])
def test_without_a_numba_that_works_torch_serves(fault, monkeypatch, always):
    k, x = NETWORKS["depth 2"], hard_rows()
    truth = k.ntk(x)
    if fault == "not there":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    elif fault == "broken":
        monkeypatch.setitem(sys.modules, "farfield.kernels._compiled", None)
        monkeypatch.delattr(kernels, "_compiled")
    else:
        monkeypatch.setattr(compiled, "SWITCHED_OFF", True)
    _block.compiled_code.cache_clear()
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            value = k.ntk(x)
            k.ntk(x)
        assert _block.compiled_code() is None
    finally:
        _block.compiled_code.cache_clear()
    assert [str(w.message)[:42] for w in seen] == ["numba is installed but can't be used, so k"] * (
        fault == "broken"
    )
    torch.testing.assert_close(value, truth, rtol=0, atol=1e-14 * float(truth.max()))


@pytest.mark.full
def test_nowhere_to_keep_what_was_compiled(tmp_path):
    """A read-only installation and no home."""
    package = Path(farfield.__file__).parent
    copy = tmp_path / "src" / "farfield"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__", "papers", "atlas"))
    (copy / "kernels" / "__pycache__").write_text("")
    code = (
        "import torch; from farfield import kernels; from farfield.kernels import _block\n"
        "k = kernels.mlp(depth=1, layer_norm='first', bias_var=0.1)\n"
        "print(k.ntk(torch.randn(1100, 3)).shape, _block.compiled_code() is not None)"
    )
    nowhere = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "IPYTHONDIR"), "/proc/none")
    environment = {**os.environ, **nowhere, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "torch.Size([1100, 1100]) True", done.stderr


def test_a_result_of_another_type_is_refused():
    with pytest.raises(InvalidValueError, match="out holds"):
        NETWORKS["depth 2"].ntk(hard_rows().float(), out=torch.empty(13, 13, dtype=torch.float16))
