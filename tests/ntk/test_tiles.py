"""Tiles and budgets: the same values in any pieces, on disk, after a kill, and within the memory that was given."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import farfield
from farfield.engine import parse_memory
from farfield.errors import InvalidValueError
from farfield.ntk import choose_method, empirical_ntk, layer_contributions
from farfield.ntk._empirical import _KernelJob
from farfield.ntk._factors import Outer
from farfield.ntk._gram import _as_dense, _formed, _outer
from ntk_models import build, distance

SOURCE = Path(farfield.__file__).resolve().parent.parent


def many(name, n=11, m=7):
    """The model, and as many inputs as are asked for."""
    model, x, _ = build(name)
    generator = torch.Generator().manual_seed(5)
    if not x.is_floating_point():
        size = int(x.max()) + 1
        draw = [torch.randint(0, size, (k, *x.shape[1:]), generator=generator) for k in (n, m)]
    else:
        draw = [torch.randn(k, *x.shape[1:], generator=generator, dtype=x.dtype) for k in (n, m)]
    return model, *draw


@pytest.mark.parametrize(
    "name", ["layer_norm_affine", "cnn", "conv_stride_dilation_groups", "gpt_tied", "shared_conv"]
)
@pytest.mark.parametrize("method", ["layerwise", "jacobian", "ntvp"])
def test_small_budgets_give_the_same_kernel(name, method):
    model, x, y = many(name, 4, 3)
    for outputs in ("trace", "full"):
        whole = empirical_ntk(model, x, y, outputs=outputs, method="layerwise")
        for memory in (1, 50_000) if method != "ntvp" else (20_000,):
            tiled = empirical_ntk(model, x, y, outputs=outputs, method=method, memory=memory)
            assert distance(tiled, whole) < 1e-12
    if method != "ntvp":
        square = empirical_ntk(model, x, method=method, memory=1)
        assert distance(square, empirical_ntk(model, x)) < 1e-12
        assert torch.equal(square, square.T)


def test_parts_in_tiles():
    model, x, y = many("layer_norm_affine")
    for second in (None, y):
        whole = layer_contributions(model, x, second)
        tiled = layer_contributions(model, x, second, memory=20_000)
        assert set(whole) == set(tiled)
        assert all(distance(tiled[name], whole[name]) < 1e-12 for name in whole)


@pytest.mark.parametrize("trace", [True, False])
@pytest.mark.parametrize("room", [1, 3_000, 100_000])
def test_both_ways_of_contracting_factors_in_any_room(trace, room):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    for sides in ((1, 3), (3, 1), (3, 3), (1, 1)):
        a = Outer(draw(5, sides[0], 2, 4, 3), draw(5, sides[1], 2, 4, 6))
        b = Outer(draw(6, sides[0], 2, 2, 3), draw(6, sides[1], 2, 2, 6))
        p, q = _as_dense(a), _as_dense(b)
        truth = torch.einsum("nkp,mkp->nm", p, q) if trace else torch.einsum("nkp,mlp->nmkl", p, q)
        assert distance(_outer(a, b, trace, room), truth) < 1e-13
        assert distance(_formed(a, b, trace, room), truth) < 1e-13
        assert distance(_outer(a, Outer(b.left, b.right.roll(1, 0)), trace, room), truth) > 1e-3
        for side, at in (("left", 0), ("right", 1)):
            if sides[at] > 1:
                continue  # the column of ones is the same for all outputs
            stored = [
                Outer(*(torch.cat([f, torch.ones_like(f[..., :1])], -1) if s == side else f
                        for s, f in (("left", t.left), ("right", t.right))))
                for t in (a, b)
            ]  # fmt: skip
            truth = _outer(*stored, trace, room)
            implied = Outer(a.left, a.right, side), Outer(b.left, b.right, side)
            assert distance(_outer(*implied, trace, room), truth) < 1e-13
            assert distance(_formed(*implied, trace, room), truth) < 1e-13


# ------------------------------------------------------------------ the choice


def test_wide_layers_are_taken_apart_and_narrow_ones_are_not():
    wide = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 1))
    choice = choose_method(wide, torch.zeros(10, 8))
    assert choice.method == "layerwise" and "factors take" in choice.reason and "Jacobian" in choice.reason
    long = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.AdaptiveAvgPool1d(1))
    choice = choose_method(long, torch.zeros(10, 1, 500))
    assert choice.method == "jacobian" and "no more than its factors" in choice.reason
    choice = choose_method(wide, torch.zeros(10, 8), memory="10kB")
    assert choice.method == "ntvp" and "do not fit into 10 kB" in choice.reason


def test_pieces_grow_with_the_budget():
    model = nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 1))
    x = torch.zeros(5000, 8)
    sides = [choose_method(model, x, memory=memory).side for memory in ("100kB", "1MB", "10MB", "4GB")]
    assert sides == sorted(sides) and sides[0] < 50 and sides[-1] == 5000
    assert choose_method(model, x, memory="1MB", outputs="full").side == sides[1]


# ------------------------------------------------------------------ on disk


@pytest.mark.parametrize("outputs", ["trace", "full"])
def test_a_file_that_is_memory_mapped(tmp_path, outputs):
    model, x, y = many("layer_norm_affine")
    value = empirical_ntk(model, x, y, outputs=outputs, out=tmp_path / "kernel.npy", memory=50_000)
    stored = np.load(tmp_path / "kernel.npy", mmap_mode="r")
    whole = empirical_ntk(model, x, y, outputs=outputs)
    assert distance(value, whole) < 1e-12
    axes = (2, 3, 0, 1) if outputs == "full" else (0, 1)
    assert np.array_equal(stored.transpose(axes), value.numpy())


def test_a_tensor_and_an_array(tmp_path):
    model, x, _ = many("layer_norm_affine")
    truth = empirical_ntk(model, x)
    tensor, array = torch.full((11, 11), torch.nan, dtype=torch.float64), np.full((11, 11), np.nan)
    assert empirical_ntk(model, x, out=tensor).data_ptr() == tensor.data_ptr()
    empirical_ntk(model, x, out=array)
    assert torch.equal(tensor, truth) and np.array_equal(array, truth.numpy())
    with pytest.raises(InvalidValueError, match="shape"):
        empirical_ntk(model, x, out=torch.empty(5, 5, dtype=torch.float64))


FORKED = """
    import json, os, signal, sys
    import torch
    from torch import nn
    torch.set_num_threads(1)
    from farfield.ntk import choose_method, empirical_ntk
    def apart(task, *words):
        # A process of its own, without loading torch again: how it ended, and what it wrote.
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.dup2(write, 1)
            try:
                task(*words)
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            sys.stdout.flush()
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as file:
            text = file.read()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text
"""
KILLED = """
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 2)).double().eval()
    for p in model.parameters():
        p.data.copy_(torch.randn(p.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(30, 6, generator=generator, dtype=torch.float64)
    def task(folder, method, stop):
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
        def progress(done, total):
            print(done, total, flush=True)
            if done == stop:
                os.kill(os.getpid(), signal.SIGKILL)
        options = {"out": "kernel.npy", "checkpoint": "tiles", "memory": 60_000, "method": method}
        value = empirical_ntk(model, x, progress=progress, **options)
        torch.save(value.clone(), "kernel.pt")
    def results(folder):
        return {p: os.stat(f"{folder}/tiles/{p}").st_mtime_ns for p in os.listdir(f"{folder}/tiles") if "result" in p}
    for method in ("layerwise", "jacobian"):
        first, told = apart(task, f"{method}_killed", method, 4)
        finished = results(f"{method}_killed")
        unfinished = not os.path.exists(f"{method}_killed/kernel.pt")
        second, _ = apart(task, f"{method}_killed", method, -1)
        third, _ = apart(task, f"{method}_whole", method, -1)
        codes, total, after = [first, second, third], int(told.split()[-1]), results(f"{method}_killed")
        print(json.dumps([method, codes, total, unfinished, finished, after]))
"""


def run(script, folder):
    """The lines a script printed, each JSON."""
    environment = {k: v for k, v in os.environ.items() if k != "FARFIELD_CHECK_SHAPES"}
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    (folder / "run.py").write_text(textwrap.dedent(FORKED) + textwrap.dedent(script))
    done = subprocess.run(
        [sys.executable, "run.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1500:]
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path):
    for method, codes, total, unfinished, finished, after in run(KILLED, tmp_path)[0]:
        assert codes == [-signal.SIGKILL, 0, 0]
        assert total > 8 and unfinished
        assert len(finished) == 4 and len(after) == total
        assert {name: after[name] for name in finished} == finished, "a finished tile was computed again"
        killed, whole = tmp_path / f"{method}_killed", tmp_path / f"{method}_whole"
        a, b = torch.load(killed / "kernel.pt"), torch.load(whole / "kernel.pt")
        assert torch.equal(a, b) and not a.isnan().any()
        assert np.array_equal(np.load(killed / "kernel.npy"), a.numpy())


def test_what_autograd_saves_is_counted_though_it_is_freed_on_the_way():
    """Tiles are sized by it. Memory that is given out again is another tensor: by chance it was counted once."""
    wide = [nn.Sequential(nn.Linear(50, 50, dtype=torch.float64), nn.Tanh()) for _ in range(10)]
    model, x = nn.Sequential(*wide).eval(), torch.zeros(4, 50, dtype=torch.float64)
    saved = {_KernelJob.of(model, x, None, "trace", None).plan.saved for _ in range(5)}
    # The input and ten outputs of tanh, each saved by itself and by the next layer: the same storage.
    assert saved == {11 * 50 * 8}


def test_tiles_of_another_computation_are_refused(tmp_path):
    model, x, _ = many("layer_norm_affine")
    empirical_ntk(model, x, checkpoint=tmp_path / "tiles", memory=50_000)
    empirical_ntk(model, x, checkpoint=tmp_path / "tiles", memory=50_000)
    changes = [
        lambda: empirical_ntk(model, x + 1, checkpoint=tmp_path / "tiles", memory=50_000),
        lambda: empirical_ntk(model, x, checkpoint=tmp_path / "tiles", memory=50_000, outputs="sum"),
        lambda: empirical_ntk(model, x, checkpoint=tmp_path / "tiles", memory=50_000, method="jacobian"),
        lambda: empirical_ntk(model, x, checkpoint=tmp_path / "tiles", memory=50_000, parameters="0"),
        lambda: empirical_ntk(model, x, checkpoint=tmp_path / "tiles"),
    ]
    for change in changes:
        with pytest.raises(InvalidValueError, match="another computation"):
            change()
    model[0].weight.data[0, 0] += 1e-9
    with pytest.raises(InvalidValueError, match="another computation"):
        empirical_ntk(model, x, checkpoint=tmp_path / "tiles", memory=50_000)


def test_progress():
    model, x, _ = many("layer_norm_affine")
    told = []
    empirical_ntk(model, x, memory=20_000, progress=lambda *t: told.append(t))
    total = told[-1][1]
    assert total > 3 and told == [(k, total) for k in range(total + 1)]


# ------------------------------------------------------------------ measured memory

PEAK = """
    import resource, threading, time
    def mlp():
        layers = [nn.Linear(64, 1024)]
        for _ in range(3):
            layers += [nn.ReLU(), nn.Linear(1024, 1024)]
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(1024, 1)), torch.randn(1000, 64)
    def outputs():
        layers = (nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        return nn.Sequential(*layers), torch.randn(300, 64)
    def cnn():
        first, second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, stride=2)
        return nn.Sequential(
            first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(32 * 49, 2)
        ), torch.randn(60, 3, 16, 16)
    def transformer():
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Embedding(50, 32), layer, nn.Flatten(), nn.Linear(32 * 64, 2)), torch.randint(0, 50, (60, 64))
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    def task(kind, memory, method):
        model, x = globals()[kind]()
        model.eval()
        empirical_ntk(model, x[:2], method=method)  # what is loaded on first use
        out = torch.zeros(len(x), len(x))
        watched = {"peak": 0, "going": True}
        def watch():
            while watched["going"]:
                watched["peak"] = max(watched["peak"], resident())
                time.sleep(0.001)
        before = resident()
        watcher = threading.Thread(target=watch)
        watcher.start()
        empirical_ntk(model, x, memory=memory, method=method, out=out)
        watched["going"] = False
        watcher.join()
        side = choose_method(model, x, memory=memory).side
        jacobian = sum(p.numel() for p in model.parameters()) * len(x) * 4
        print(json.dumps([kind, memory, method, watched["peak"] - before, side < len(x), jacobian]))
    for words in (
        ("mlp", "40MB", "layerwise"), ("mlp", "120MB", "layerwise"), ("outputs", "60MB", "layerwise"),
        ("cnn", "60MB", "layerwise"), ("cnn", "60MB", "jacobian"), ("transformer", "60MB", "layerwise"),
    ):
        code, text = apart(task, *words)
        assert code == 0, words
        print(text, end="", flush=True)
"""  # noqa: E501


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_peak_memory_stays_within_the_budget(tmp_path):
    """Resident memory while it runs, less what was there before; the allocator keeps some of its own."""
    found, _ = run(PEAK, tmp_path)
    assert len(found) == 6
    for kind, memory, method, used, tiled, jacobian in found:
        assert used < parse_memory(memory) + 8e6, (kind, memory, method, used)
        assert used > 1e6, "nothing was measured"
        if kind == "mlp":
            assert tiled and jacobian > 100 * parse_memory(memory)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("method", ["layerwise", "jacobian", "ntvp"])
def test_nothing_is_left_behind(method):
    """Thirty calls hold no more than one: a graph that holds itself would keep 8 MB of scaled weights each time."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(1000, 1000, dtype=torch.float64))
            self.head = nn.Linear(1000, 1).double()

        def forward(self, x):
            return self.head(torch.tanh(nn.functional.linear(x, 0.03 * self.weight)).exp())

    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    model, x = Scaled(), torch.randn(2, 1000, dtype=torch.float64)
    for _ in range(3):
        empirical_ntk(model, x, method=method)
    before = resident()
    for _ in range(30):
        empirical_ntk(model, x, method=method)
    assert resident() - before < 30 * 8e6 / 2  # the allocator keeps some of what others left
