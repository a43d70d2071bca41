"""Where a finding is: in the file that was audited, or on the line its program keeps; a page has no empty panel."""

import json

import torch
from torch import nn
from typer.testing import CliRunner

from farfield.audit import audit
from farfield.cli._app import app
from farfield.graph import export_for_any_rows, write_program
from farfield.report import render_sarif


def locations(found):
    results = render_sarif(found)["runs"][0]["results"]
    assert results
    return [r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results]


def test_findings_of_a_file_point_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    write_program(export_for_any_rows(model, (torch.zeros(1, 3),), {}), "model.pt2")
    assert set(locations(audit("model.pt2").to_dict())) == {"model.pt2"}
    done = CliRunner().invoke(app, ["audit", "model.pt2", "--sarif", "found.sarif", "--html", "page.html"])
    assert done.exit_code == 1
    (result,) = json.loads((tmp_path / "found.sarif").read_text())["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "model.pt2"
    page = (tmp_path / "page.html").read_text()
    assert "No rays were evaluated" not in page and "random directions" in page


def test_findings_of_a_class_point_to_its_file():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, x):
            return self.layer(x)

    assert all(uri.endswith("test_places.py") for uri in locations(audit(Net(), torch.zeros(1, 3)).to_dict()))
