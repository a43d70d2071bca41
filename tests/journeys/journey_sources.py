"""Every form in which a model reaches a verb: as people write it, and as another verb left it.

Each source is made once a process, in a folder, by what a user would call.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn
from typer.testing import CliRunner

import farfield as ff
from farfield.cli._app import app

NAMES = ("temperature", "pressure", "flow")
ROWS = torch.rand(300, 3, generator=torch.Generator().manual_seed(0)) * 2 - 1
BATCH = ({0: torch.export.Dim("batch")},)
NETS = '''"""A network as a user keeps it: its weights are in another file."""

from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))
'''


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2)).eval()


@functools.cache
def folder() -> Path:
    """Of this process."""
    made = Path(tempfile.mkdtemp(prefix="journeys"))
    (made / "nets.py").write_text(NETS)
    np.save(made / "calibration.npy", ROWS.numpy())
    return made


@functools.cache
def fixed() -> Any:
    return ff.repair(net(), ROWS)


def exported(model: nn.Module, *, rows: int | None = None) -> Any:
    """As a user exports it: for this many rows, or for any."""
    if rows is not None:
        return torch.export.export(model, (ROWS[:rows],))
    return torch.export.export(model, (ROWS[:4],), dynamic_shapes=BATCH)


def program_file(name: str, model: nn.Module, rows: int | None = None) -> Path:
    torch.export.save(exported(model, rows=rows), folder() / name)
    return folder() / name


def by_torch_onnx(name: str, model: nn.Module) -> Path:
    with warnings.catch_warnings():  # of torch about itself
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (ROWS[:4],), folder() / name, dynamo=True, dynamic_shapes=BATCH, verbose=False
        )
    return folder() / name


def by_skl2onnx() -> Path:
    from skl2onnx import to_onnx
    from sklearn.neural_network import MLPRegressor

    rows = ROWS.numpy()
    made = MLPRegressor(hidden_layer_sizes=(16,), solver="lbfgs", max_iter=2000, random_state=0)
    made.fit(rows, rows[:, 0] ** 2)
    path = folder() / "sklearn.onnx"
    path.write_bytes(to_onnx(made, rows[:1]).SerializeToString())
    return path


def by_hand() -> Path:
    """As a C++ program or a converter of another library writes it: Gemm, Relu, MatMul, Add, opset 13."""
    rng = np.random.default_rng(0)
    shapes = {"w": (16, 3), "b": (16,), "v": (16, 2), "c": (2,)}
    tensors = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gemm", ["obs", "w", "b"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "v"], ["m"]),
        helper.make_node("Add", ["m", "c"], ["action"]),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", k]) for n, k in (("obs", 3), ("action", 2))
    ]
    graph = helper.make_graph(nodes, "policy", ends[:1], ends[1:], tensors)
    path = folder() / "by_hand.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


def saved(value: Any, name: str) -> Path:
    value.save(folder() / name)
    return folder() / name


def restored(kind: str) -> nn.Module:
    return ff.repair.restore(net(), saved(fixed(), f"fixed.{kind}"))


def by_command(source: Callable[[], Path], name: str) -> Path:
    """What ``farfield repair`` writes of a file."""
    out = folder() / name
    words = ("repair", source(), "--data", folder() / "calibration.npy", "--out", out)
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return out


def weights(value: nn.Module, name: str) -> tuple[str, ...]:
    """A class in a file, and weights, as a command takes them."""
    if name.endswith(".pt"):
        torch.save(value.state_dict(), folder() / name)
    else:
        from safetensors.torch import save_file

        save_file(value.state_dict(), folder() / name)
    return (f"{folder() / 'nets.py'}:Net", "--weights", str(folder() / name))


def fixed_weights(name: str) -> tuple[str, ...]:
    return (f"{folder() / 'nets.py'}:Net", "--weights", str(saved(fixed(), name)))


@dataclass(frozen=True)
class Source:
    """How it is made, and what is true of it: its prediction is bounded; it returns a score as well."""

    make: Callable[[], Any]
    bounded: bool = False
    scored: bool = False

    @property
    def made(self) -> Any:
        """A model, the path of a file, or the words that name it to a command."""
        return _made(self.make)

    @property
    def given(self) -> Any:
        """What somebody passes in Python."""
        return self.made[0] if isinstance(self.made, tuple) else self.made


@functools.cache
def _made(make: Callable[[], Any]) -> Any:
    return make()


def _open() -> Path:
    return program_file("open.pt2", net())


def _torch_onnx() -> Path:
    return by_torch_onnx("torch.onnx", net())


def _guard(model: Any) -> Any:
    return ff.guard(model, ROWS)


SOURCES = {
    "module": Source(net),
    "program": Source(lambda: exported(net())),
    "fixed.pt2": Source(lambda: program_file("one_row.pt2", net(), rows=1)),
    "open.pt2": Source(_open),
    "torch.onnx": Source(_torch_onnx),
    "sklearn.onnx": Source(by_skl2onnx),
    "by_hand.onnx": Source(by_hand),
    "file.py with .pt": Source(lambda: weights(net(), "weights.pt")),
    "file.py with .safetensors": Source(lambda: weights(net(), "weights.safetensors")),
    "repaired": Source(lambda: fixed().model, bounded=True),
    "repaired program": Source(lambda: exported(fixed().model), bounded=True),
    "repaired, exported": Source(lambda: program_file("repaired_open.pt2", fixed().model), bounded=True),
    "repaired.pt2": Source(lambda: saved(fixed(), "fixed.pt2"), bounded=True),
    "repaired.onnx": Source(lambda: saved(fixed(), "fixed.onnx"), bounded=True),
    "repaired, torch.onnx": Source(lambda: by_torch_onnx("repaired_torch.onnx", fixed().model), bounded=True),
    "restored from .pt": Source(lambda: restored("pt"), bounded=True),
    "restored from .safetensors": Source(lambda: restored("safetensors"), bounded=True),
    "file.py with repaired .pt": Source(lambda: fixed_weights("fixed.pt"), bounded=True),
    "file.py with repaired .safetensors": Source(lambda: fixed_weights("fixed.safetensors"), bounded=True),
    "open.pt2 repaired.pt2": Source(lambda: by_command(_open, "open_repaired.pt2"), bounded=True),
    "open.pt2 repaired.onnx": Source(lambda: by_command(_open, "open_repaired.onnx"), bounded=True),
    "torch.onnx repaired.onnx": Source(lambda: by_command(_torch_onnx, "torch_repaired.onnx"), bounded=True),
    "sklearn.onnx repaired.pt2": Source(
        lambda: by_command(by_skl2onnx, "sklearn_repaired.pt2"), bounded=True
    ),
    "by_hand.onnx repaired.onnx": Source(lambda: by_command(by_hand, "by_hand_repaired.onnx"), bounded=True),
    "guarded": Source(lambda: _guard(net()), scored=True),
    "guarded.pt2": Source(lambda: saved(_guard(net()), "guarded.pt2"), scored=True),
    "guarded.onnx": Source(lambda: saved(_guard(net()), "guarded.onnx"), scored=True),
    "repaired, guarded": Source(lambda: _guard(fixed().model), bounded=True, scored=True),
    "repaired, guarded.pt2": Source(
        lambda: saved(_guard(fixed().model), "both.pt2"), bounded=True, scored=True
    ),
    "repaired, guarded.onnx": Source(
        lambda: saved(_guard(fixed().model), "both.onnx"), bounded=True, scored=True
    ),
    "repaired.onnx, guarded.onnx": Source(
        lambda: saved(_guard(saved(fixed(), "fixed.onnx")), "guarded_file.onnx"), bounded=True, scored=True
    ),
}
"""Name → source. A new kind of file is a row here."""
