"""Whole programs repaired: exported ones and files, where protections stand between operations."""

import copy
import io
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim
from typer.testing import CliRunner

import farfield as ff
from farfield.cli._app import app
from farfield.errors import InvalidValueError
from farfield.nn import NormCap

# torch's own, whenever a program that it exported is copied.
pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")
DYNAMIC = ({0: Dim.AUTO},)


class Functional(nn.Module):
    """Weights and functions, no submodule to put anything behind; two outputs in a dictionary."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.first = nn.Parameter(torch.randn(16, 4, generator=generator))
        self.second = nn.Parameter(torch.randn(16, 16, generator=generator) / 4)
        self.last = nn.Parameter(torch.randn(1, 16, generator=generator))

    def forward(self, x):
        h = torch.relu(x @ self.first.T)
        h = h + torch.relu(h @ self.second.T)
        return {"value": h @ self.last.T, "size": h.sum(-1)}


def rows(count=700):
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(1))


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2)).eval()


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 3], ids=["one row", "three rows"])
@pytest.mark.parametrize("free", [True, False], ids=["any number of rows", "a fixed one"])
def test_a_program_is_repaired_between_its_operations(free, count):
    model, x = Functional(), rows()
    exported = torch.export.export(
        model, (x[:count],), dynamic_shapes=DYNAMIC if free and count > 1 else None
    )
    fixed = ff.repair(exported, x)
    assert fixed.after.verdict.name == "BOUNDED" and fixed.change.unchanged >= 0.99
    assert [type(i.module).__name__ for i in fixed.inserted] == [
        "FeatureClamp", "NormCap", "RangeHead", "RangeHead"
    ]  # fmt: skip
    old = exported.module().state_dict()
    new = fixed.model.state_dict()
    assert all(torch.equal(new[name], value) for name, value in old.items())
    wild = 1e6 * x[:count]
    for scale in (1.0, 1e8, 1e30):
        after = fixed.model(scale * wild)
        assert all(bool(torch.isfinite(v).all()) for v in after.values())
        assert float(after["value"].abs().max()) <= float(model(x)["value"].abs().max()) * 1.001
    # Copies and the way back.
    near = x[:count]
    twin = copy.deepcopy(fixed.model)
    for name, value in fixed.model(near).items():
        assert torch.equal(twin(near)[name], value)
        torch.testing.assert_close(fixed.undo()(near)[name], model(near)[name])
    assert torch.equal(fixed.undo()(wild)["value"], exported.module()(wild)["value"])


def test_a_file_is_repaired_and_written(tmp_path):
    model, x = plain(), rows()
    torch.export.save(torch.export.export(model, (x[:2],), dynamic_shapes=DYNAMIC), tmp_path / "model.pt2")
    fixed = ff.repair(tmp_path / "model.pt2", x)
    caps = [i for i in fixed.inserted if isinstance(i.module, NormCap)]
    assert [cap.at for cap in caps] == ["node_relu"]
    fixed.save(tmp_path / "fixed.pt2")
    assert ff.audit(str(tmp_path / "fixed.pt2")).verdict.name == "BOUNDED"
    again = torch.export.load(tmp_path / "fixed.pt2").module()
    for count in (1, 2, 7):
        torch.testing.assert_close(again(x[:count]), fixed.model(x[:count]))


def test_a_saved_module_takes_any_number_of_rows(tmp_path):
    x = rows()
    fixed = ff.repair(plain(), x)
    fixed.save(tmp_path / "fixed.pt2")
    served = torch.export.load(tmp_path / "fixed.pt2").module()
    for count in (1, 5):
        torch.testing.assert_close(served(x[:count]), fixed.model(x[:count]))


def test_operations_are_named_by_the_user():
    x = rows()
    exported = torch.export.export(Functional(), (x[:2],), dynamic_shapes=DYNAMIC)
    fixed = ff.repair(exported, x, method="cap", at="add")
    assert [str(i) for i in fixed.inserted] == ["NormCap behind node_add"]
    with pytest.raises(InvalidValueError, match=r"no 'nowhere'\. There are: .*relu"):
        ff.repair(exported, x, at="nowhere")
    with pytest.raises(InvalidValueError, match="holds weights"):
        ff.repair("weights.bin", x)


def test_what_export_gives_is_audited_as_a_module():
    """Its eval() raises in torch; it has one mode."""
    module = torch.export.export(plain(), (rows(2),), dynamic_shapes=DYNAMIC).module()
    assert ff.audit(module, rows(2)).verdict.name == "UNBOUNDED"
    assert ff.repair(module, rows()).after.verdict.name == "BOUNDED"


def test_a_repaired_program_is_pickled():
    x = rows()
    fixed = ff.repair(torch.export.export(plain(), (x[:2],), dynamic_shapes=DYNAMIC), x)
    buffer = io.BytesIO()
    torch.save(fixed.model.state_dict(), buffer)
    buffer.seek(0)
    other = copy.deepcopy(fixed.model)
    other.load_state_dict(torch.load(buffer, weights_only=True))
    assert torch.equal(other(1e9 * x), fixed.model(1e9 * x))


def test_from_a_shell(tmp_path):
    x = rows()
    torch.export.save(torch.export.export(plain(), (x[:1],)), tmp_path / "model.pt2")
    np.save(tmp_path / "rows.npy", x.numpy())
    words = ["repair", str(tmp_path / "model.pt2"), "--data", str(tmp_path / "rows.npy")]
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "fixed.pt2")])
    assert done.exit_code == 0, done.output
    assert "UNBOUNDED → BOUNDED" in done.output
    assert ff.audit(str(tmp_path / "fixed.pt2")).verdict.name == "BOUNDED"


def test_many_from_a_shell(tmp_path):
    """Every unbounded program of a folder; one without rows, and weights, are told."""
    x = rows()
    models = tmp_path / "models"
    models.mkdir()
    for name in ("a", "b"):
        torch.export.save(
            torch.export.export(plain(), (x[:2],), dynamic_shapes=DYNAMIC), models / f"{name}.pt2"
        )
    bounded = nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16), nn.Linear(16, 1)).eval()
    torch.export.save(torch.export.export(bounded, (x[:2],), dynamic_shapes=DYNAMIC), models / "bounded.pt2")
    (tmp_path / "rows").mkdir()
    np.save(tmp_path / "rows" / "a.npy", x.numpy())
    out = tmp_path / "out"
    words = [
        "audit-all",
        str(models),
        "--out",
        str(out),
        "--repair",
        str(tmp_path / "rows"),
        "--workers",
        "1",
    ]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 1 and "repaired 1 of 2 unbounded models" in done.output, done.output
    lines = {r["path"]: r for r in map(json.loads, (out / "repairs.jsonl").read_text().splitlines())}
    assert "no rows" in lines["b.pt2"]["error"] and lines["a.pt2"]["unchanged"] >= 0.99
    assert ff.audit(str(out / lines["a.pt2"]["repaired"])).verdict.name == "BOUNDED"
    before = (out / lines["a.pt2"]["repaired"]).stat().st_mtime_ns
    CliRunner().invoke(app, words)
    assert (out / lines["a.pt2"]["repaired"]).stat().st_mtime_ns == before  # not made again
