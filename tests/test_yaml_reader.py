"""YAML that users write means what it seems to mean, or is refused with its line."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.cli import main
from stages.params.experiment import ParamsError, load_params
from stages.params.schema import read_yaml as read_params
from stages.yaml_reader import YamlError, dump_yaml, read_yaml
from tests.project import EXPERIMENT, make_project

FAULTS = {
    "a: 1\nb: 2\na: 3": r"line 3: key 'a' occurs twice, first in line 1; keep one",
    "{a: 1, a: 2}": r"line 1: key 'a' occurs twice, first in line 1",
    '{"b": {"a": 1, "a": 2}}': r"line 1: b key 'a' occurs twice",
    "b: [{1: x, 1.0: y}]": r"b\.0 key '1\.0' occurs twice",
    "a: 2026-01-01": r"line 1: a is a date; expected a number, text",
    "a: {b: [1, 2026-01-01 10:00:00]}": r"a\.b\.1 is a date",
    "a: 2026-13-45": r"a is a date",
    "a: !!binary aGk=": r"a is of the type binary",
    "a: !!set {x}": r"a is of the type set",
    "a: !!python/name:os.system x": r"a is of the type .*os\.system",
    "2026-01-01: a": r"has a key of the type timestamp; expected a text or a number: quote it",
    "on: a": r"has a key of the type bool",
    "? [1]\n: a": r"has a key of the type seq",
    "{1: a, b: c}": r"has texts and numbers as keys, such as 'b'; quote the numbers",
    "a: .inf": r"a is inf; expected a finite number",
    "a: [1.0e400]": r"a\.0 is inf; expected a finite number",
    f"a: {'9' * 5000}": r"a is 9{20}…; expected a finite number",
    "a: 010": r"a is 010, which YAML reads as 8; write that, or quote it",
    "a: 1:30": r"a is 1:30, which YAML reads as 90",
    "a: &a [*a]": r"a\.0 contains itself",
    "a: [": r"not YAML",
    f"{'[' * 9000}": r"not YAML|nested too deep",
}


@pytest.mark.parametrize("text", FAULTS, ids=lambda text: text[:20])
def test_what_yaml_would_misread_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(YamlError, match=FAULTS[text]) as caught:
        read_yaml(tmp_path / "mine.yaml")
    assert "mine.yaml" in str(caught.value) and "\n" not in str(caught.value)


TEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs", "Cn", "Co", "Zl", "Zp"])).filter(
    lambda text: not re.fullmatch(r"[-+]?\d+\.?\d*[eE][-+]?\d+", text)  # a text in YAML 1.1, a number in JSON
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner) | st.dictionaries(st.integers(), inner),
    max_leaves=8,
)


@given(VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_plain_values_are_read_as_they_were_written(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(value, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == value


@given(VALUES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_json_is_read_as_json(tmp_path: Path, value: Any) -> None:
    path, text = tmp_path / "mine.json", json.dumps(value, ensure_ascii=False)
    path.write_text(text, encoding="utf-8")
    assert read_yaml(path) == json.loads(text)


def test_merged_keys_may_be_overridden(tmp_path: Path) -> None:
    text = "base: &a {x: 1}\nouter: {inner: &b {<<: *a, x: 2}}\ntop: {<<: *b, y: 3}\nrate: 1e-3\n"
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    found = read_yaml(tmp_path / "mine.yaml")
    assert found["top"] == {"x": 2, "y": 3} and math.isclose(found["rate"], 0.001)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_project(tmp_path_factory.mktemp("params") / "project")


@pytest.mark.parametrize("value", ["2026-01-01", "{2026-01-01: 1}", "!!binary aGk=", "{a: 1, a: 2}", ".nan"])
@pytest.mark.parametrize(
    "place", ["arms.vit.model.width", "protocol.optimizer.lr", "metrics.m.beta", "title", "datasets.mnist.title"]
)
def test_every_value_in_every_params_file_is_plain(place: str, value: str, project: Path) -> None:
    path = project / ("params.yaml" if place.startswith("datasets") else f"params/{EXPERIMENT}.yaml")
    before = path.read_bytes()
    content = read_params(path)
    *above, last = place.split(".")
    part = content
    for name in above:
        part = part.setdefault(name, {})
    part[last] = "VALUE"
    path.write_text(yaml.safe_dump(content).replace("VALUE", value), encoding="utf-8")
    try:
        with pytest.raises(ParamsError, match=rf"{path.name}, line \d+: {place}"):
            load_params(project)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{alpha_within: 0.1, alpha_within: 0.2}", "key 'alpha_within' occurs twice"),
        ("verdicts: {alpha_within: 0.1}\nminimum: 4", "minimum is next to verdicts; move it there, or leave it out"),
        ("verdict: {alpha_within: 0.1}", "verdict: unknown key; known: margins, looks"),
        ("margins: {loss: 1}", "margins.loss: unknown key; known: error_points"),
        ("[]", "expected fields such as looks and margins; found []"),
        ("", "expected fields such as looks and margins; found None"),
    ],
)
def test_rules_are_read_whole_or_refused(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.json").write_text(text, encoding="utf-8")
    assert main(["judge", "claims.csv", "results.csv", "--rules", str(tmp_path / "mine.json")]) == 1
    assert words in capsys.readouterr().err


def test_written_yaml_spells_out_what_occurs_twice() -> None:
    shared = {"name": "Ä", "depth": [1, 2]}
    text = dump_yaml({"b": shared, "a": {"model": shared}})
    assert "&" not in text and "*" not in text and [*yaml.safe_load(text)] == ["b", "a"]
    assert yaml.safe_load(text)["a"]["model"] == shared
