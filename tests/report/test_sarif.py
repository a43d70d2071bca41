"""SARIF: the parts of the 2.1.0 standard that readers rely on, checked structurally."""

import json
import re
from urllib.parse import urlparse

from farfield.report import render_sarif

LEVELS = {"error", "warning", "note", "none"}
KINDS = {"pass", "open", "informational", "notApplicable", "review", "fail"}
RULE_KEYS = {
    "id",
    "name",
    "shortDescription",
    "fullDescription",
    "help",
    "helpUri",
    "defaultConfiguration",
    "properties",
}
RESULT_KEYS = {
    "ruleId",
    "ruleIndex",
    "kind",
    "level",
    "message",
    "locations",
    "partialFingerprints",
    "properties",
}
RUN_KEYS = {"tool", "invocations", "results", "columnKind", "properties"}


def check(log):
    """Raise AssertionError where a log breaks the standard."""
    assert set(log) == {"$schema", "version", "runs"} and log["version"] == "2.1.0"
    assert urlparse(log["$schema"]).scheme == "https"
    json.loads(json.dumps(log, allow_nan=False))
    for run in log["runs"]:
        assert set(run) <= RUN_KEYS
        driver = run["tool"]["driver"]
        assert driver["name"] and driver["version"]
        ids = [rule["id"] for rule in driver["rules"]]
        assert len(ids) == len(set(ids))
        for rule in driver["rules"]:
            assert set(rule) <= RULE_KEYS
            assert rule["shortDescription"]["text"].endswith(".")
            assert re.fullmatch(r"\w+", rule["name"])
            assert rule.get("defaultConfiguration", {"level": "none"})["level"] in LEVELS
        assert all(isinstance(i["executionSuccessful"], bool) for i in run["invocations"])
        for result in run["results"]:
            check_result(result, ids)


def check_result(result, ids):
    assert set(result) <= RESULT_KEYS
    assert ids[result["ruleIndex"]] == result["ruleId"]
    assert result["level"] in LEVELS and result["kind"] in KINDS
    # Only a failure has a level (§3.27.10).
    assert (result["kind"] == "fail") == (result["level"] != "none")
    assert result["message"]["text"].strip()
    assert len(result["locations"]) == 1
    for location in result["locations"]:
        assert set(location) <= {"physicalLocation", "logicalLocations", "message"}
        for logical in location["logicalLocations"]:
            assert (
                logical["name"] and logical["fullyQualifiedName"] and logical["kind"] in ("module", "element")
            )
        physical = location.get("physicalLocation")
        if physical is not None:
            uri = physical["artifactLocation"]["uri"]
            assert " " not in uri and "\\" not in uri
            assert urlparse(uri).scheme in ("", "file")
            assert uri.startswith("file:///") or not uri.startswith("/")
            assert physical["region"]["startLine"] >= 1


def test_every_audit_gives_a_valid_log(named):
    verdict, data = named
    log = render_sarif(data)
    check(log)
    run = log["runs"][0]
    assert run["properties"]["verdict"] == verdict
    assert [r["id"] for r in run["tool"]["driver"]["rules"]] == [r["code"] for r in data["rules"]]
    failures = [r for r in run["results"] if r["kind"] == "fail"]
    assert [(r["ruleId"], r["level"]) for r in failures] == [
        (f["code"], f["severity"]) for f in data["findings"]
    ]
    for result, finding in zip(failures, data["findings"], strict=True):
        assert finding["action"].rstrip(".") in result["message"]["text"]


def test_unknown_is_never_an_empty_log(audited):
    results = render_sarif(audited("unknown"))["runs"][0]["results"]
    assert [r["kind"] for r in results if r["ruleId"] == "FF001"] == ["open"]
    assert any("physicalLocation" in r["locations"][0] for r in results)


def test_files_under_the_working_folder_are_relative(audited, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = audited("unbounded")
    data["findings"][0]["place"].update(
        source=str(tmp_path / "my models" / "net.py") + ":17", module_path="a.b"
    )
    data["findings"][1]["place"].update(source="/elsewhere/net.py:3")
    first, second = (r["locations"][0] for r in render_sarif(data)["runs"][0]["results"])
    assert first["physicalLocation"]["artifactLocation"]["uri"] == "my%20models/net.py"
    assert first["physicalLocation"]["region"] == {"startLine": 17}
    assert first["logicalLocations"][0] == {"name": "b", "fullyQualifiedName": "a.b", "kind": "module"}
    assert second["physicalLocation"]["artifactLocation"]["uri"] == "file:///elsewhere/net.py"


def test_a_place_without_a_line_takes_the_nearest_before_it_or_the_audited_file(audited):
    data = audited("unbounded")
    place = data["findings"][0]["place"]
    place.update(source=None, node="output")
    location = render_sarif(data)["runs"][0]["results"][0]["locations"][0]
    assert location["message"]["text"] == "The nearest operation with a known line: head."
    head = next(n for n in data["graph"]["nodes"] if n["module_path"] == "head")
    assert head["source"].endswith(f":{location['physicalLocation']['region']['startLine']}")
    for node in data["graph"]["nodes"]:
        node["source"] = None
    location = render_sarif(data)["runs"][0]["results"][0]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"].endswith("conftest.py")  # what was audited
    assert (
        location["physicalLocation"]["region"]["startLine"] == 1 and location["logicalLocations"][0]["name"]
    )
    check(render_sarif(data))


def test_fingerprints_tell_findings_apart_and_do_not_move_with_lines(audited):
    data = audited("unbounded")
    before = [r["partialFingerprints"]["farfield/v1"] for r in render_sarif(data)["runs"][0]["results"]]
    assert len(set(before)) == len(before) > 1
    for finding in data["findings"]:
        finding["place"]["source"] = "moved.py:999"
    assert [
        r["partialFingerprints"]["farfield/v1"] for r in render_sarif(data)["runs"][0]["results"]
    ] == before


def test_names_keep_their_case(audited):
    results = render_sarif(audited("unbounded"))["runs"][0]["results"]
    texts = [r["message"]["text"] for r in results]
    assert any(text.startswith("x → embed") for text in texts) and not any("X → " in text for text in texts)
    assert all(text.endswith(".") for text in texts)


def test_the_check_itself_can_fail(audited):
    log = render_sarif(audited("unbounded"))
    for broken in (
        {"level": "fatal"},
        {"ruleIndex": 5},
        {"kind": "open"},
        {"message": {"text": ""}},
        {"locations": []},
    ):
        wrong = json.loads(json.dumps(log))
        wrong["runs"][0]["results"][0].update(broken)
        try:
            check(wrong)
        except (AssertionError, KeyError):
            continue
        raise AssertionError(f"accepted {broken}")
