"""A model that lies on a device: proofs on a copy in main memory, what comes back where the model was."""

import numpy as np
import pytest
import torch
from torch import nn

import farfield as ff
from farfield.graph import in_memory
from simulated_device import DEVICE, OnDevice, Simulated, numbers, on_device

ROWS = torch.randn(200, 4, generator=torch.Generator().manual_seed(1))


def net(kind=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).to(kind).eval()


DATA = {
    "in main memory": lambda: ROWS,
    "on the device": lambda: OnDevice(ROWS),
    "array": lambda: ROWS.numpy(),
    "loader": lambda: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS), batch_size=50),
}


def places(model):
    return {tensor.device for tensor in (*model.parameters(), *model.buffers())}


def test_the_device_refuses_what_a_device_refuses():
    model = on_device(net())
    with Simulated():
        assert model(OnDevice(ROWS)).device == DEVICE
        torch.testing.assert_close(model(OnDevice(ROWS)).cpu(), net()(ROWS))
        with pytest.raises(RuntimeError, match="same device"):
            model(ROWS)


@pytest.mark.parametrize("rows", DATA)
def test_audit_and_certify_take_a_copy(rows):
    model = on_device(net())
    with Simulated():
        assert ff.audit(model, DATA[rows]()).verdict.name == "UNBOUNDED"
        bounded = on_device(nn.Sequential(net(), nn.LayerNorm(2)))
        found = ff.certify(bounded, DATA[rows](), time_budget=ff.Budget(steps=2))
        assert np.isfinite(found.upper.numpy()).all()
    assert places(model) == places(bounded) == {DEVICE}


@pytest.mark.parametrize("rows", DATA)
def test_a_repair_is_handed_back_on_the_device(rows, tmp_path):
    model = on_device(net())
    hostile = torch.cat([ROWS[:5], 1e6 * ROWS[:5]])
    with Simulated():
        fixed = ff.repair(model, DATA[rows]())
        assert fixed.after.verdict.name == "BOUNDED"
        assert places(fixed.model) == places(model) == {DEVICE}
        wanted = fixed.model(OnDevice(hostile)).cpu()
        for kind in ("pt2", "safetensors"):
            fixed.save(tmp_path / f"fixed.{kind}")
        again = ff.repair.restore(on_device(net()), tmp_path / "fixed.safetensors")
        assert places(again) == {DEVICE}
        assert torch.equal(again(OnDevice(hostile)).cpu(), wanted)
    loaded = torch.export.load(tmp_path / "fixed.pt2").module()
    assert torch.equal(loaded(hostile), wanted)
    assert torch.equal(wanted, ff.repair(net(), ROWS).model(hostile))


@pytest.mark.parametrize("rows", DATA)
def test_a_guard_stands_where_its_model_does(rows, tmp_path):
    with Simulated():
        guarded = ff.guard(on_device(net()), DATA[rows]())
        assert places(guarded) == {DEVICE}
        output, score = guarded(OnDevice(torch.cat([ROWS[:5], 1e3 * ROWS[:5]])))
        assert output.device == score.device == DEVICE
        assert (numbers(score)[:5] <= 1).all() and (numbers(score)[5:] > 1).all()
        assert guarded(ROWS.numpy())[1].device == DEVICE
        guarded.save(tmp_path / "guarded.pt2")
    found, other = torch.export.load(tmp_path / "guarded.pt2").module()(ROWS[:3])
    assert found.shape == (3, 2) and (other <= 1).all()


def test_what_lies_in_memory_is_not_copied():
    model = net()
    assert in_memory(model) is model and in_memory(ROWS) is ROWS


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_a_model_of_half_precision_keeps_its_type(kind):
    fixed = ff.repair(net(kind), ROWS.to(kind))
    assert fixed.after.verdict.name == "BOUNDED"
    assert {p.dtype for p in fixed.model.parameters()} == {kind}
    out = fixed.model(1e3 * ROWS.to(kind))
    assert out.dtype == kind and torch.isfinite(out).all()
