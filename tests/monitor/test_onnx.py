"""The guard inside an ONNX file, run by onnxruntime: the same outputs and scores as in torch."""

import math

import pytest
import torch
from torch import nn

from farfield.errors import InvalidValueError
from farfield.monitor import guard

pytest.importorskip("onnxscript", reason="needs the extra [onnx]")
onnxruntime = pytest.importorskip("onnxruntime", reason="needs the extra [onnx]")


def mlp():
    layers = [nn.Linear(6, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 2)]
    return nn.Sequential(*layers), torch.randn(400, 6) * torch.tensor([1.0, 10.0, 0.1, 1.0, 5.0, 100.0]) + 3


def convolutions():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3),
        nn.SiLU(),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 3),
    ), torch.rand(200, 3, 8, 8)


def transformer():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(5, 16), encoder, nn.Linear(16, 1)), torch.randn(200, 7, 5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("answer", ["flag", "cap", "fallback"])
@pytest.mark.parametrize("make", [mlp, convolutions, transformer])
def test_onnxruntime_gives_what_torch_gives(make, answer, tmp_path):
    torch.manual_seed(0)
    model, rows = make()
    guarded = guard(model.eval(), rows, on_outside=answer)
    path = tmp_path / "guarded.onnx"
    program = torch.onnx.export(
        guarded,
        (rows[:4],),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=4096)},),
        verbose=False,
    )
    program.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    hostile = rows[:12].clone()
    hostile[0].view(-1)[0], hostile[1].view(-1)[1], hostile[2].view(-1)[2] = math.nan, math.inf, -math.inf
    # Flagged only, the model itself is asked: beyond this the squares in its norm overflow, as each runtime has it.
    hostile[3].view(-1)[3], hostile[4].view(-1)[0] = (1e12, -1e15) if answer == "flag" else (1e30, -1e36)
    for x in (rows[:50], 100 * rows[:30], hostile, rows[:2]):
        with torch.no_grad():
            output, score = guarded(x)
        seen, told = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        told = torch.from_numpy(told)
        torch.testing.assert_close(told, score, rtol=1e-4, atol=1e-5)
        assert torch.equal(torch.isinf(told), torch.isinf(score)) and not told.isnan().any()
        clear = (score - 1).abs() > 1e-3  # at the limit itself two arithmetics may disagree
        torch.testing.assert_close(
            torch.from_numpy(seen)[clear], output[clear], rtol=1e-4, atol=1e-4, equal_nan=True
        )
    inside = session.run(None, {session.get_inputs()[0].name: rows.numpy()})[1]
    assert (inside <= 1).mean() >= 0.98


@pytest.mark.filterwarnings("ignore")
def test_saved_it_names_its_results_and_takes_any_number_of_rows(tmp_path):
    torch.manual_seed(0)
    model, rows = mlp()
    source = tmp_path / "model.onnx"
    shapes = ({0: torch.export.Dim("n")},)
    torch.onnx.export(
        model.eval(),
        (rows[:2],),
        str(source),
        dynamo=True,
        dynamic_shapes=shapes,
        output_names=["drag"],
        verbose=False,
    )
    for made, names in ((guard(model, rows), ["output", "score"]), (guard(source, rows), ["drag", "score"])):
        made.save(tmp_path / "guarded.onnx")
        assert made.summary().rows == 0  # exporting counts no rows
        session = onnxruntime.InferenceSession(tmp_path / "guarded.onnx", providers=["CPUExecutionProvider"])
        assert [result.name for result in session.get_outputs()] == names
        for count in (1, 3, 100):
            with torch.no_grad():
                output, score = made(3 * rows[:count])
            seen, told = session.run(None, {session.get_inputs()[0].name: (3 * rows[:count]).numpy()})
            torch.testing.assert_close(torch.from_numpy(seen), output, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(torch.from_numpy(told), score, rtol=1e-4, atol=1e-5)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, place, *, speed):
        return {"lift": self.layer(place), "drag": self.layer(speed)}


@pytest.mark.filterwarnings("ignore")
def test_several_arguments_and_results(tmp_path):
    torch.manual_seed(0)
    rows = {"place": torch.randn(200, 4), "speed": torch.randn(200, 4)}
    made = guard(Pair(), rows, on_outside="cap")
    made.save(tmp_path / "pair.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "pair.onnx", providers=["CPUExecutionProvider"])
    assert [result.name for result in session.get_outputs()] == ["lift", "drag", "score"]
    feeds = {"place": 9 * rows["place"][:7], "speed": rows["speed"][:7]}
    with torch.no_grad():
        output, score = made(**feeds)
    found = session.run(None, {given.name: feeds[given.name].numpy() for given in session.get_inputs()})
    for seen, wanted in zip(found, (output["lift"], output["drag"], score), strict=True):
        torch.testing.assert_close(torch.from_numpy(seen), wanted, rtol=1e-4, atol=1e-4)


def test_a_program_in_a_file_is_guarded_and_written(tmp_path):
    torch.manual_seed(0)
    model, rows = mlp()
    torch.export.save(
        torch.export.export(model.eval(), (rows[:2],), dynamic_shapes=({0: torch.export.Dim.AUTO},)),
        tmp_path / "model.pt2",
    )
    made = guard(tmp_path / "model.pt2", rows, on_outside="fallback")
    plain = guard(model, rows, on_outside="fallback")
    made.save(tmp_path / "guarded.pt2")
    again = torch.export.load(tmp_path / "guarded.pt2").module()
    for x in (rows[:5], 100 * rows[:3], rows[:1]):
        with torch.no_grad():
            results = [one(x) for one in (plain, made, again)]
        for output, score in results[1:]:
            torch.testing.assert_close(output, results[0][0])
            torch.testing.assert_close(score, results[0][1])
    with pytest.raises(InvalidValueError, match=r"\.pt2 or \.onnx"):
        made.save(tmp_path / "guarded.bin")
