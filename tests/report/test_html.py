"""The HTML report: one file, complete, escaped, and a graph that stays readable at any size."""

import itertools
import random
import re
import time

import pytest

from farfield.report import render_html
from farfield.report._chart import chart
from farfield.report._collapse import DETAILED, collapse, marks_of
from farfield.report._layout import HEIGHT, lay_out
from farfield.report._words import interval_text, node_label, short_source
from report.pages import Page


def test_page_is_well_formed_self_contained_and_complete(named):
    verdict, data = named
    text = render_html(data)
    page = Page(text)
    assert text.lstrip().startswith("<!doctype html>")
    assert "http://" not in text
    assert "https://" not in text
    assert "url(http" not in text
    assert not {"link", "img", "iframe", "object"} & set(page.tags)
    assert not [a for a in page.attributes if a[1] in ("src", "srcset", "action") or a[1].startswith("on")]
    assert len(page.ids) == len(set(page.ids))
    targets = [value[1:] for _, key, value in page.attributes if key == "href"]
    assert set(targets) <= set(page.ids)
    assert len(text) < 300_000
    words = page.words
    assert data["verdict"] == verdict and verdict in words
    assert "not a claim of accuracy" in words
    for rule in data["rules"]:
        assert rule["code"] in words and rule["title"] in words and rule["outcome"] in words
        assert re.sub(r"\s+", " ", rule["reason"]) in words
    for finding in data["findings"]:
        assert finding["action"] in words
        assert finding["severity"] in words
    for row in data["growth"]["verdicts"]:
        assert row["output"] in words
    for version in data["provenance"]["versions"].values():
        assert version in words


def test_headings_and_labels_for_those_who_do_not_see(named):
    page = Page(render_html(named[1]))
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert ("html", "lang", "en") in page.attributes
    boxes = [a for a in page.attributes if a[0] == "g" and a[1] == "aria-label"]
    assert boxes and all(value for *_, value in boxes)
    for _, key, value in page.attributes:
        if key in ("aria-labelledby", "aria-describedby"):
            assert set(value.split()) <= set(page.ids)
    # Every drawing either has a name or is decoration.
    for opening in re.findall(r"<svg[^>]*>", render_html(named[1])):
        assert "aria-hidden" in opening or "aria-labelledby" in opening


def test_escape_path_is_drawn_and_bypassed_norms_are_marked(audited):
    data = audited("unbounded")
    drawing = collapse(data)
    path = data["growth"]["verdicts"][0]["paths"][0]["nodes"]
    on_path = [m for box in drawing.boxes if box.on_path for m in box.members]
    assert sorted(on_path) == sorted(path)
    assert sum(flag for *_, flag in drawing.links) == len(path) - 1
    assert sum("bypassed" in box.tags for box in drawing.boxes) == 2
    assert [box.label for box in drawing.boxes if "+ norm after" in box.tags] == data["growth"]["verdicts"][
        0
    ]["cut"]["labels"]
    text = render_html(data)
    assert text.count('class="link on-path"') == len(path)  # one more in the legend
    assert "bypassed" in text and "escape path" in text


def test_bounded_cut_is_marked_and_the_wish_for_a_norm_is_not(audited):
    drawing = collapse(audited("bounded"))
    assert [b.label for b in drawing.boxes if "cuts the paths" in b.tags] == ["final"]
    assert not any("+ norm after" in b.tags or b.on_path for b in drawing.boxes)
    both = collapse(audited("two inputs"))
    tags = {b.label: b.tags for b in both.boxes if b.tags}
    assert tags == {"aux.1": ("cuts the paths",), "value.1": ("+ norm after", "FF001"), "cat": ("FF002",)}


def test_undecided_place_is_marked(audited):
    drawing = collapse(audited("unknown"))
    assert [box.label for box in drawing.boxes if "open" in box.tags] == ["div"]


def test_many_nodes_are_grouped_by_module(audited):
    data = audited("transformer")
    assert len(data["graph"]["nodes"]) > DETAILED
    drawing = collapse(data)
    assert len(drawing.boxes) <= 40
    marks = marks_of(data)
    alone = {box.members[0] for box in drawing.boxes if len(box.members) == 1}
    assert marks.path <= alone
    assert {n["name"] for n in data["graph"]["nodes"] if n["op"] == "layer_norm"} <= alone
    assert any(box.label == "encoder.layers.0.self_attn" and box.role == "group" for box in drawing.boxes)
    assert "grouped by module" in Page(render_html(data)).words


@pytest.mark.parametrize("modules", [True, False])
@pytest.mark.parametrize("layers", [12, 40, 400])
def test_huge_graphs_stay_small(huge, layers, modules):
    data = huge(layers, modules)
    text = render_html(data)
    assert len(text) < 400_000
    drawing = collapse(data)
    assert len(drawing.boxes) <= DETAILED
    members = [m for box in drawing.boxes for m in box.members]
    assert sorted(members) == sorted(n["name"] for n in data["graph"]["nodes"])
    assert drawing.boxes[0].on_path and drawing.boxes[-1].on_path
    if modules and layers == 400:
        assert any(re.fullmatch(r"model\.layers\.\d+ … \d+", box.label) for box in drawing.boxes)
        assert any(re.fullmatch(r"\d+ norms bypassed", tag) for box in drawing.boxes for tag in box.tags)


@pytest.mark.parametrize("modules", [True, False])
def test_rendering_time_grows_no_faster_than_the_graph(huge, modules):
    def seconds(data):
        times = []
        for _ in range(3):
            start = time.process_time()
            render_html(data)
            times.append(time.process_time() - start)
        return min(times)

    small, large = huge(60, modules), huge(480, modules)
    seconds(small)  # the template is compiled once
    assert seconds(large) < 20 * seconds(
        small
    )  # eight times the nodes; a quadratic step would take sixty-four


def test_groups_never_form_a_cycle(audited):
    data = audited("unbounded")
    for seed in range(20):
        rng = random.Random(seed)
        count = rng.randint(80, 200)
        template = data["graph"]["nodes"][1]
        paths = ["", "a", "a.b", "a.c", "d.0", "d.1", "d.2", "d.3", "d.4", "d.5.e"]
        nodes = [
            {
                **template,
                "name": f"n{i}",
                "module_path": rng.choice(paths),
                "op": rng.choice(["add", "layer_norm", "relu"]),
            }
            for i in range(count)
        ]
        edges = [[f"n{rng.randrange(i)}", f"n{i}"] for i in range(1, count) for _ in range(rng.randint(1, 3))]
        data["graph"] = {"nodes": nodes, "edges": edges}
        drawing = collapse(data)
        place = {box.key: i for i, box in enumerate(drawing.boxes)}
        assert all(place[a] < place[b] for a, b, _ in drawing.links)
        assert len(drawing.boxes) <= DETAILED


def test_layout_keeps_boxes_apart_and_arrows_downwards():
    for seed in range(20):
        rng = random.Random(seed)
        keys = [f"b{i}" for i in range(rng.randint(2, 50))]
        links = [
            (keys[rng.randrange(i)], keys[i], rng.random() < 0.2)
            for i in range(1, len(keys))
            for _ in range(rng.randint(1, 2))
        ]
        links = list({(a, b): (a, b, flag) for a, b, flag in links}.values())
        widths = {key: rng.uniform(90, 220) for key in keys}
        layout = lay_out(widths, links)
        assert len(layout.routes) == len(links)
        for a, b, _ in links:
            assert layout.centers[a][1] + HEIGHT < layout.centers[b][1]
        for p, q in itertools.combinations(keys, 2):
            (px, py), (qx, qy) = layout.centers[p], layout.centers[q]
            assert py != qy or abs(px - qx) > (widths[p] + widths[q]) / 2
        for key, (x, y) in layout.centers.items():
            assert widths[key] / 2 <= x <= layout.width - widths[key] / 2
            assert HEIGHT / 2 <= y <= layout.height - HEIGHT / 2


def test_heavy_links_are_straight():
    links = [("a", "b", False), ("b", "c", False), ("c", "d", False), ("a", "d", True), ("d", "e", True)]
    layout = lay_out(dict.fromkeys("abcde", 100.0), links)
    columns = [layout.centers[key][0] for key in "ade"]
    assert max(columns) - min(columns) < 0.5


def test_chart_has_every_ray_and_the_witness_on_top(audited):
    data = audited("unbounded")
    drawn = chart(data["rays"])
    assert [line.emphasized for line in drawn.lines] == [False, False, True]
    ys = [float(p.split(",")[1]) for p in drawn.lines[-1].runs[0].split()]
    assert ys[-1] < ys[-8] < ys[-16]  # upwards on the page
    flat = chart(audited("bounded")["rays"])
    for line in flat.lines:
        ys = [float(p.split(",")[1]) for p in line.runs[0].split()]
        assert max(ys[-8:]) - min(ys[-8:]) < 2.0


def test_chart_survives_infinities_zeros_and_nothing(audited):
    rays = {"radii": [1.0, 10.0, 100.0], "series": [{"label": "witness", "values": [0.0, "inf", "nan"]}]}
    assert chart(rays) is None
    rays["series"].append({"label": "random direction", "values": [1.0, 1e300, "inf"]})
    drawn = chart(rays)
    assert any("cut off" in note for note in drawn.notes) and any("float64" in note for note in drawn.notes)
    assert drawn.lines[0].stops is not None
    assert chart({"radii": [], "series": []}) is None
    data = audited("bounded")
    data["rays"] = {"radii": [], "series": []}
    assert "No rays were evaluated" in render_html(data)


def test_a_witness_of_another_output_is_not_passed_off_as_growth_of_the_one_drawn(audited):
    data = audited("two inputs")
    for verdict in data["growth"]["verdicts"]:
        if verdict["witness"] is not None:
            verdict["witness"]["output"] = "output_1"
    assert "it proves the growth of output_1" in render_html(data)


def test_names_from_the_model_are_text(audited):
    evil = "<script>alert(1)</script>\"'&</title><svg onload=x>\u202e\x1b[31m"
    data = audited("unbounded")
    data["subject"].update(name=evil, outputs=[evil], unseen=[evil])
    data["subject"]["class"] = evil
    data["subject"]["inputs"][0]["name"] = evil
    data["provenance"]["platform"] = evil
    data["growth"]["assumptions"] = [{"node": evil, "text": evil}]
    for node in data["graph"]["nodes"]:
        node.update(module_path=evil, module_type=evil, source=f"{evil}.py:3", shape=[evil])
    for finding in data["findings"]:
        finding.update(message=evil, action=evil, evidence={evil: [evil]})
        finding["place"].update(module_path=evil, module_type=evil, source=evil)
    for rule in data["rules"]:
        rule["reason"] = evil
    for verdict in data["growth"]["verdicts"]:
        verdict["output"] = evil
        verdict["paths"][0]["labels"] = [evil, evil]
        verdict["witness"]["directions"] = {evil: [1.0]}
    text = render_html(data)
    page = Page(text)
    assert page.tags.count("script") == 1 and page.tags.count("title") == 1 + len(data["graph"]["nodes"])
    assert "<script>alert" not in text and "<svg onload" not in text
    assert "\x1b" not in text and "\u202e" not in text
    assert "alert(1)" in page.words


def test_no_other_script_may_run(audited):
    import base64
    import hashlib

    text = render_html(audited("bounded"))
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in text or f"script-src 'sha256-{digest}'" in text
    assert "default-src 'none'" in text


def test_empty_graph_and_long_directions(audited):
    data = audited("unbounded")
    data["graph"] = {"nodes": [], "edges": []}
    for verdict in data["growth"]["verdicts"]:
        verdict["witness"]["directions"] = {"image": [[0.1] * 224] * 224}
    text = render_html(data)
    assert "no graph to draw" in text
    assert "50,176 entries" in text
    assert len(text) < 60_000


def test_intervals_are_rounded_outwards():
    assert interval_text([-1.23451, 1.23401]) == "[-1.235, 1.235]"
    assert interval_text([1.23459, 9.9999]) == "[1.234, 10]"
    assert interval_text([None, 0.0]) == "(-∞, 0]"


def test_sources_lose_the_machine_they_were_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert short_source(str(tmp_path / "models" / "net.py") + ":7") == "models/net.py:7"
    assert short_source("/opt/lib/python3/site-packages/pkg/a/b.py:3") == "pkg/a/b.py:3"
    assert short_source("/home/someone/project/net.py:3") == "project/net.py:3"
    assert short_source("src/models/deep/net.py:3") == "src/models/deep/net.py:3"
    assert short_source(None) == ""


def test_labels_agree_with_the_paths_of_the_audit(named):
    _, data = named
    for verdict in data["growth"]["verdicts"]:
        by_name = {n["name"]: n for n in data["graph"]["nodes"]}
        for path in verdict["paths"]:
            assert set(path["labels"]) <= {node_label(by_name[name]) for name in path["nodes"]}
            assert set(path["bypassed"]) <= {node_label(n) for n in data["graph"]["nodes"]}
