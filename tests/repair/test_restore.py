"""A repaired model comes back from a file of its weights, to the last bit, or is refused with the reason."""

import json

import pytest
import torch
from torch import nn

import farfield as ff
from farfield.errors import InvalidValueError
from farfield.repair import RepairError, restore

ROWS = torch.randn(300, 5, generator=torch.Generator().manual_seed(0))
FAR = torch.cat([ROWS[:20], 1e6 * ROWS[:20], torch.full((1, 5), float("nan"))])


def net(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 2)).to(dtype).eval()


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("method", ["auto", "soft", "features", "cap", "range"])
def test_it_comes_back_to_the_last_bit(method, suffix, tmp_path):
    for dtype in (torch.float32, torch.float64):
        fixed = ff.repair(net(dtype=dtype), ROWS.to(dtype), method=method)
        fixed.save(tmp_path / f"fixed{suffix}")
        again = restore(net(seed=1, dtype=dtype), tmp_path / f"fixed{suffix}")
        with torch.no_grad():
            assert torch.equal(again(FAR.to(dtype)), fixed.model(FAR.to(dtype)))
    assert ff.audit(again, ROWS.to(dtype)[:1], rays=0).verdict.name == "BOUNDED"


def test_a_distilled_norm_comes_back(tmp_path):
    try:
        fixed = ff.repair(net(), ROWS, method="norm")
    except RepairError:
        pytest.skip("the norm takes too much variance here")
    fixed.save(tmp_path / "fixed.pt")
    with torch.no_grad():
        assert torch.equal(restore(net(1), tmp_path / "fixed.pt")(FAR[:40]), fixed.model(FAR[:40]))


def test_a_rollout_and_a_program(tmp_path):
    step = nn.Linear(5, 5)
    ff.repair(step, ROWS, rollout=True).save(tmp_path / "step.safetensors")
    assert torch.isfinite(restore(nn.Linear(5, 5), tmp_path / "step.safetensors")(FAR)).all()
    program = torch.export.export(net(), (ROWS[:2],), dynamic_shapes=({0: torch.export.Dim("batch")},))
    fixed = ff.repair(program, ROWS)
    fixed.save(tmp_path / "program.pt")
    assert torch.equal(restore(program, tmp_path / "program.pt")(FAR), fixed.model(FAR))


def test_an_own_checkpoint_holds_the_settings(tmp_path):
    class Trainer(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.net = model

    fixed = ff.repair(net(), ROWS)
    torch.save(Trainer(fixed.model).state_dict(), tmp_path / "trainer.pt")
    with torch.no_grad():
        assert torch.equal(restore(net(1), tmp_path / "trainer.pt")(FAR), fixed.model(FAR))


def test_what_can_not_be_restored_is_refused(tmp_path):
    fixed = ff.repair(net(), ROWS)
    torch.save(dict(fixed.model.state_dict()), tmp_path / "plain.pt")
    with pytest.raises(InvalidValueError, match="says nothing of protections"):
        restore(net(), tmp_path / "plain.pt")
    with pytest.raises(ff.errors.FarfieldError, match="No such file"):
        restore(net(), tmp_path / "missing.pt")
    fixed.save(tmp_path / "fixed.pt")
    with pytest.raises(ff.errors.FarfieldError, match="do not fit"):
        restore(nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2)), tmp_path / "fixed.pt")
    for settings, said in (
        ("{", "can't be read"),
        (json.dumps([{"place": "input"}]), "can't be read"),
        (
            json.dumps([{"place": "x", "at": "0", "kind": "NormCap", "key": "k", "options": {}}]),
            "can't be read",
        ),
        (
            json.dumps([{"place": "input", "at": "0", "kind": "NormCap", "key": "k", "options": {}}]),
            "not hold all",
        ),
    ):
        state = fixed.model.state_dict()
        state._metadata["farfield_repair"]["insertions"] = settings
        torch.save(state, tmp_path / "edited.pt")
        with pytest.raises(InvalidValueError, match=said):
            restore(net(), tmp_path / "edited.pt")
