from pathlib import Path

import pytest

from service.pages import scripts
from service.pages.scripts import ChartScripts


def test_a_second_start_finds_the_bundle_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "BUNDLE", "print('bundled', end='')")
    assert ChartScripts(tmp_path / "cache").vega() == b"bundled"
    monkeypatch.setattr(scripts, "BUNDLE", "raise SystemExit('bundled again')")
    assert ChartScripts(tmp_path / "cache").vega() == b"bundled"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [f"vega-{ChartScripts().version}.js"]


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scripts, "BUNDLE", "print('bundled', end='')")
    (tmp_path / "file").write_text("no folder")
    assert ChartScripts(tmp_path / "file").vega() == b"bundled"
