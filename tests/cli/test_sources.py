"""Models from source files and checkpoints: the same options at every command, and words for what can't be read."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from farfield._target import load_target, named_arguments
from farfield._weights import CheckpointError, put_weights
from farfield.cli._app import app
from farfield.errors import InvalidValueError
from farfield.repair import repair

SOURCE = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, width=8, norm=True):
        super().__init__(nn.Linear(3, width), nn.LayerNorm(width) if norm else nn.ReLU(), nn.Linear(width, 1))
"""


def net(width=8, norm=True):
    middle = nn.LayerNorm(width) if norm else nn.ReLU()
    return nn.Sequential(nn.Linear(3, width), middle, nn.Linear(width, 1))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my_nets.py"
    path.write_text(SOURCE)
    return f"{path}:Net"


def run(*words):
    return CliRunner().invoke(app, [str(w) for w in words])


def test_a_class_in_a_file(source):
    assert run("audit", source, "--input", "1x3").exit_code == 0
    done = run("audit", source, "--input", "1x3", "--arg", "norm=false", "--arg", "width=16", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["verdict"].upper() == "UNBOUNDED"
    assert run("audit", "--builder", source, "--input", "1x3").exit_code == 0
    assert isinstance(run("audit", source, "--builder", source).exception, InvalidValueError)
    assert isinstance(run("audit").exception, InvalidValueError)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors", ".ckpt"])
def test_weights_of_every_kind(source, tmp_path, suffix):
    model = net(width=5)
    path = tmp_path / f"best{suffix}"
    if suffix == ".safetensors":
        pytest.importorskip("safetensors.torch").save_file(model.state_dict(), path)
    elif (
        suffix == ".ckpt"
    ):  # as Lightning writes it: the network is an attribute of the module that trains it
        inner = {f"net.{name}": value for name, value in model.state_dict().items()}
        torch.save({"state_dict": {**inner, "loss.weight": torch.ones(2)}, "epoch": 3}, path)
    else:
        torch.save(model.state_dict(), path)
    loaded = load_target(source, weights=path, arguments={"width": 5})
    x = torch.randn(4, 3)
    torch.testing.assert_close(loaded(x), model(x))
    words = ("--builder", source, "--weights", path, "--arg", "width=5", "--input", "1x3")
    assert run("audit", *words).exit_code == 0
    assert run("certify", *words, "--time", "1", "--out", tmp_path / "cert.json").exit_code == 0
    assert run("verify", tmp_path / "cert.json", source, "--weights", path, "--arg", "width=5").exit_code == 0


def test_a_repair_of_weights(source, tmp_path):
    torch.save(net(norm=False).state_dict(), tmp_path / "best.pt")
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32))
    words = ("--weights", tmp_path / "best.pt", "--arg", "norm=false", "--data", tmp_path / "rows.npy")
    assert run("repair", source, *words, "--out", tmp_path / "fixed.pt2").exit_code == 0
    assert run("audit", tmp_path / "fixed.pt2").exit_code == 0


def test_wrapped_weights_lose_their_prefix_and_wrong_ones_are_named():
    model, other = net(), net()
    put_weights(other, {f"module.{name}": value for name, value in model.state_dict().items()})
    torch.testing.assert_close(other[0].weight, model[0].weight)
    with pytest.raises(CheckpointError, match="do not fit"):
        put_weights(other, {f"a.{n}": v for n, v in list(model.state_dict().items())[:2]})
    # Two networks of the same shape in one file: nobody can know which one is meant.
    both = {f"{p}.{n}": v for p in "ab" for n, v in model.state_dict().items()}
    with pytest.raises(CheckpointError, match="do not fit"):
        put_weights(other, both)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_can_not_be_loaded_is_told_what_to_do(source, tmp_path):
    traced = tmp_path / "traced.pt"
    torch.jit.save(torch.jit.trace(net().eval(), torch.zeros(2, 3)), str(traced))
    with pytest.raises(InvalidValueError, match="--weights"):
        load_target(str(traced))
    with pytest.raises(CheckpointError, match="TorchScript"):
        load_target(source, weights=traced)
    with pytest.raises(InvalidValueError, match="TorchScript"):
        repair(torch.jit.load(str(traced)), torch.randn(50, 3))
    with pytest.raises(InvalidValueError, match="no file"):
        load_target(str(tmp_path / "absent.py") + ":Net")
    with pytest.raises(InvalidValueError, match="whole model"):
        load_target("model.onnx", weights=traced)
    with pytest.raises(InvalidValueError, match="name=value"):
        named_arguments(["width"])
    assert named_arguments(["a=1", "b=relu", "c=[1, 2]"]) == {"a": 1, "b": "relu", "c": [1, 2]}
