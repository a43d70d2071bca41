"""Isometry of any model on any data: what is written in the shell, in a file, in a table."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import farfield as ff
import shell
from farfield.errors import InvalidValueError
from farfield.report import isometry_figure

KEPT = torch.randn(6, 16, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 32)).eval()


def test_the_same_numbers_whatever_the_rows_come_as(tmp_path):
    pd = pytest.importorskip("pandas")
    net = network()
    expected = ff.geometry.record_isometry(net, KEPT).gaps
    np.save(tmp_path / "rows.npy", KEPT.numpy())
    table = pd.DataFrame(KEPT.numpy(), columns=list("abcdefghijklmnop"))
    table.to_csv(tmp_path / "rows.csv", index=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(KEPT), batch_size=6)
    for data in (KEPT, KEPT.numpy(), table, tmp_path / "rows.npy", tmp_path / "rows.csv", loader, (KEPT,)):
        torch.testing.assert_close(ff.record_isometry(net, data).gaps, expected, rtol=1e-5, atol=1e-6)
    few = ff.record_isometry(net, KEPT, most_rows=5)
    assert set(few.rows) == {5}
    torch.testing.assert_close(few.gaps, ff.geometry.record_isometry(net, KEPT[:5]).gaps)


def test_files_and_programs(tmp_path):
    net = network()
    expected = ff.record_isometry(net, KEPT)
    example = KEPT.clone()
    program = torch.export.export(net, (example,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    torch.export.save(program, tmp_path / "net.pt2")
    for source in (program, tmp_path / "net.pt2", str(tmp_path / "net.pt2")):
        found = ff.record_isometry(source, KEPT)
        assert found.names == expected.names
        torch.testing.assert_close(found.gaps, expected.gaps, rtol=1e-5, atol=1e-6)


def test_an_onnx_file_has_its_own_nodes(tmp_path):
    onnx = pytest.importorskip("onnx")
    from onnx_files import small

    onnx.save(small(), tmp_path / "net.onnx")
    record = ff.record_isometry(tmp_path / "net.onnx", KEPT[:3, :4].numpy())
    assert record.kinds == ("Gemm", "Relu", "MatMul") and set(record.rows) == {3}
    assert record.gaps[0] > 0 and torch.isinf(record.gaps[2])  # three rows of one output


def test_the_model_is_as_it_was():
    net = network().train()
    ff.record_isometry(net, KEPT)
    assert net.training and not any(m._forward_hooks for m in net.modules())
    with pytest.raises(InvalidValueError, match="holds the same rows, at least one"):
        ff.record_isometry(net, KEPT[:0])


def test_several_arguments():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 20), nn.Linear(8, 20)

        def forward(self, x, z):
            return self.a(x) + self.b(z)

    net = Two()
    x, z = KEPT[:, :8], KEPT[:, 8:]
    by_place = ff.record_isometry(net, (x, z))
    by_name = ff.record_isometry(net, {"x": x, "z": z})
    assert by_place.names == by_name.names == ("a", "b")
    torch.testing.assert_close(by_place.gaps, by_name.gaps)


def test_a_figure_leaves_out_what_a_logarithm_can_not_show():
    figure = isometry_figure(ff.record_isometry(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 1)), KEPT))
    gaps, ranks, _ = figure.panels
    assert [s.x for s in gaps.series] == [(1.0,)]
    assert [s.x for s in ranks.series] == [(1.0, 2.0)]
    assert "6 rows" in figure.caption


def test_names_not_their_order_say_which_argument_is_which():
    class Two(nn.Module):
        def forward(self, x, *, z):
            return torch.tanh(x) + 5 * z

    x, z = KEPT[:, :8], KEPT[:, 8:]
    program = torch.export.export(Two(), (x,), {"z": z})
    first = ff.record_isometry(program, {"x": x, "z": z})
    assert torch.equal(first.cosines, ff.record_isometry(program, {"z": z, "x": x}).cosines)
    with pytest.raises(InvalidValueError, match="takes x, z by name; got x, y"):
        ff.geometry.record_isometry(program.module(), {"x": x, "y": z})


def test_features_are_all_compared_over_many_rows():
    rows = torch.randn(500, 16, generator=torch.Generator().manual_seed(4))
    net = nn.Sequential(nn.Linear(16, 64, bias=False), nn.BatchNorm1d(64))
    record = ff.record_isometry(net.eval(), torch.randn(3000, 16), axis="feature")
    assert record.rows == (64, 64)
    wide = nn.Sequential(nn.Linear(16, 12))
    assert bool(torch.isfinite(ff.record_isometry(wide, rows, axis="feature").gaps).all())


def test_running_statistics_stay_and_numbers_of_rows_are_checked():
    net = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8)).train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    ff.record_isometry(net, KEPT)
    assert net.training and all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    for most in (0, -1):
        with pytest.raises(InvalidValueError, match="one row or more"):
            ff.record_isometry(net, KEPT, most_rows=most)


def test_a_program_for_a_fixed_number_of_rows():
    net = network()
    program = torch.export.export(net, (KEPT[:4].clone(),))
    record = ff.record_isometry(program, KEPT, most_rows=3)
    assert set(record.rows) == {3}
    torch.testing.assert_close(record.gaps, ff.record_isometry(net, KEPT[:3]).gaps, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_the_command(tmp_path):
    net = network()
    torch.export.save(
        torch.export.export(net, (KEPT[:2].clone(),), dynamic_shapes=({0: torch.export.Dim("n")},)),
        tmp_path / "net.pt2",
    )
    np.save(tmp_path / "rows.npy", KEPT.numpy())
    done = shell.run(tmp_path, "isometry", "net.pt2", "--data", "rows.npy", "--plot", "gap.png")
    assert done.returncode == 0, done.stderr
    assert "isometry gap" in done.stdout and len(done.stdout.splitlines()) == 5
    assert (tmp_path / "gap.png").stat().st_size > 5000
    told = json.loads(shell.run(tmp_path, "isometry", "net.pt2", "--data", "rows.npy", "--json").stdout)
    expected = ff.record_isometry(net, KEPT)
    assert told["names"] == list(expected.names)
    assert told["gaps"] == pytest.approx(expected.gaps.tolist(), rel=1e-4)
    refused = shell.run(tmp_path, "isometry", "net.pt2")
    assert refused.returncode == 2 and "--data rows.npy" in refused.stderr
