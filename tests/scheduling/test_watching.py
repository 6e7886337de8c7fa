"""Journals of trainings and their summary, with real leases and a real process that is killed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from stages.runs.store import FolderScratch, RunStore
from stages.scheduling.groups import Event, Group
from stages.scheduling.journal import PREFIX, Journal, ProgressRow, Watched, left_to_train, read_sessions, watch
from stages.scheduling.leases import EXPIRY_SECONDS, Leases, process_identity
from tests.project import make_spec
from tests.scheduling.racer import claim

PRICES = {"cpu": 0.36}
PROGRESS = {"epoch": 1, "epochs": 4, "step": 25, "total_steps": 100, "samples_per_second": 50.0, "scores": {}}


GROUPS = [Group(label=f"a x.{seed}", specs=(make_spec(seed=seed),), data=Path()) for seed in range(3)]
NAMES = {group.run_keys[0]: f"a.x.{seed}" for seed, group in enumerate(GROUPS)}


def journal(store: RunStore, groups: list[Group] = GROUPS) -> Journal:
    return Journal(store, groups, NAMES, engine="local", profile="smoke", slots=1, held={"a": 2})


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "store")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Both clocks of journals, set by tests."""
    clock = [1000.0]
    monkeypatch.setattr("stages.scheduling.journal.time.time", lambda: clock[0])
    monkeypatch.setattr("stages.scheduling.journal.time.monotonic", lambda: clock[0])
    return clock


def only_row(watched: Watched) -> ProgressRow:
    (row,) = watched.rows
    return row


def test_summary_has_states_speed_costs_and_remaining_time(store: RunStore, now: list[float]) -> None:
    with journal(store) as written:
        claim(Leases(store), *GROUPS[0].run_keys)
        written.report(Event(kind="started", label="a x.0", device="cpu"))
        now[0] += 100
        written.report(Event(kind="progress", label="a x.0", progress=PROGRESS))
        seen = watch(store, PRICES, now[0])
        row = only_row(seen)
        assert (row.experiment, row.node, row.samples_per_second) == ("a", written.session.node, 50)
        assert {state: n for state, n in row.runs.items() if n} == {"running": 1, "waiting": 2}
        assert (row.seconds, row.left_seconds) == (100, pytest.approx(300 + 2 * 400)), "a quarter took 100 s"
        assert (row.usd, row.left_usd) == (pytest.approx(0.01), pytest.approx(0.11))
        assert seen.left_seconds == pytest.approx(1100)
        assert left_to_train(store, "a", 1000) == (3, pytest.approx(1100))
        assert left_to_train(store, "a", 1001) is None and left_to_train(store, "b", 0) is None
        written.report(Event(kind="finished", label="a x.0"))
        written.report(Event(kind="started", label="a x.1", device="cpu"))
        written.report(Event(kind="failed", label="a x.1", message="Traceback\nValueError: loss"))
        now[0] += 100
        written.report(Event(kind="waiting", label="a x.2", message="process 7 on there"))
        seen = watch(store, PRICES, now[0])
        assert {state: n for state, n in only_row(seen).runs.items() if n} == {"done": 1, "failed": 1, "waiting": 1}
        assert list(seen.finished) == ["a.x.0"] and seen.is_live
        assert [group.message for group in seen.sessions[0].groups] == [
            "",
            "ValueError: loss",
            "waits for process 7 on there",
        ]
    seen = watch(store, PRICES, now[0])
    assert not seen.is_live and only_row(seen).runs["stopped"] == 1 and seen.left_seconds == 0


def test_unknown_costs_are_omitted_not_zero(store: RunStore, now: list[float]) -> None:
    with journal(store) as written:
        Leases(store).claim(*GROUPS[0].run_keys)
        written.report(Event(kind="started", label="a x.0", device="tpu:0"))
        now[0] += 10
        written.report(Event(kind="waiting", label="a x.1"))
        row = only_row(watch(store, PRICES, now[0]))
    assert (row.seconds, row.usd, row.left_seconds, row.left_usd) == (10, None, None, None)


def test_training_needs_a_lease_to_count_as_running(store: RunStore, now: list[float]) -> None:
    with journal(store) as written:
        written.report(Event(kind="started", label="a x.0", device="cpu"))
        now[0] += 10
        written.report(Event(kind="progress", label="a x.0", progress=PROGRESS))
        assert only_row(watch(store, PRICES, now[0])).runs["lost"] == 1, "the lease is free"


def test_runs_of_a_dead_owner_are_lost(store: RunStore) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    owner = process_identity(child.pid)
    assert Leases(store, owner).claim(*GROUPS[0].run_keys) is not None
    written = journal(store)
    written.session.owner = owner
    written.report(Event(kind="started", label="a x.0", device="cpu"))
    assert only_row(watch(store, PRICES, time.time())).runs["running"] == 1
    child.kill()
    child.wait()
    seen = watch(store, PRICES, time.time())
    assert {state: n for state, n in only_row(seen).runs.items() if n} == {"lost": 1, "stopped": 2}
    assert not seen.is_live


def test_journal_has_the_address_of_its_dashboard(store: RunStore) -> None:
    with journal(store) as written:
        written.report(Event(kind="started", label="a x.0", dashboard="http://127.0.0.1:8265"))
        written.report(Event(kind="finished", label="a x.0"))
    ((_, session),) = read_sessions(store.scratch)
    assert session.dashboard == "http://127.0.0.1:8265"


def test_runs_of_a_silent_machine_are_lost(store: RunStore, now: list[float]) -> None:
    """A remote process can only be judged by its silence, like its lease."""
    written = journal(store)
    written.session.owner = "elsewhere:boot:1:7:9"
    Leases(store, written.session.owner).claim(*GROUPS[0].run_keys)
    written.report(Event(kind="started", label="a x.0", device="cpu", node="elsewhere"))
    row, waiting = sorted(
        watch(store, PRICES, now[0] + EXPIRY_SECONDS / 2, ["a"]).rows, key=lambda row: row.node != "elsewhere"
    )
    assert (row.node, row.runs["running"], waiting.runs["waiting"]) == ("elsewhere", 1, 2)
    row, stopped = sorted(
        watch(store, PRICES, now[0] + 2 * EXPIRY_SECONDS).rows, key=lambda row: row.node != "elsewhere"
    )
    assert (row.runs["lost"], row.runs["running"], stopped.runs["stopped"]) == (1, 0, 2)
    assert watch(store, PRICES, now[0], ["b"]).rows == []


def test_summary_shows_the_process_that_trains(store: RunStore, now: list[float]) -> None:
    with journal(store, GROUPS[:1]) as first, journal(store, GROUPS[:1]) as second:
        Leases(store).claim(*GROUPS[0].run_keys)
        first.report(Event(kind="started", label="a x.0", device="cpu"))
        now[0] += 10
        first.report(Event(kind="progress", label="a x.0", progress=PROGRESS))
        second.report(Event(kind="waiting", label="a x.0", message="the first"))
        row = only_row(watch(store, PRICES, now[0]))
        assert {state: n for state, n in row.runs.items() if n} == {"running": 1}


def test_failure_is_shown_until_the_run_is_trained(store: RunStore, now: list[float]) -> None:
    with journal(store, GROUPS[:1]) as first:
        first.report(Event(kind="failed", label="a x.0", message="no keys"))
    assert [(group.label, group.message) for group in watch(store, PRICES, now[0]).failed] == [("a x.0", "no keys")]
    now[0] += 10
    with journal(store, GROUPS[:1]) as second:
        second.report(Event(kind="finished", label="a x.0"))
    watched = watch(store, PRICES, now[0])
    assert watched.failed == [] and only_row(watched).runs["done"] == 1


def test_progress_is_saved_rarely_but_its_end_always(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[str] = []
    save = FolderScratch.save

    def counted(self: FolderScratch, name: str, content: bytes) -> None:
        saved.append(name)
        save(self, name, content)

    monkeypatch.setattr(FolderScratch, "save", counted)
    with journal(store) as written:
        for step in range(1, 101):
            written.report(Event(kind="progress", label="a x.0", progress=PROGRESS | {"step": step}))
        assert len(saved) == 1
    assert len(saved) == 2 and saved[0].startswith(PREFIX)
    ((_, session),) = read_sessions(store.scratch)
    assert session.ended and session.groups[0].share == 1


def test_training_continues_if_progress_cannot_be_written(store: RunStore, capsys: pytest.CaptureFixture[str]) -> None:
    store.root.mkdir(parents=True)
    (store.root / "work").write_text("a file where the folder belongs", encoding="utf-8")
    with journal(store) as written:
        written.report(Event(kind="started", label="a x.0"))
    said = capsys.readouterr().err
    assert said.startswith("progress couldn't be written for `claimcheck status`: ") and said.count("\n") == 1


def test_old_journals_are_removed_and_foreign_ones_skipped(store: RunStore) -> None:
    for _ in range(25):
        with journal(store):
            pass
    store.scratch.save(f"{PREFIX}foreign/progress.json", b'{"written by": "another version"}')
    assert len(list(read_sessions(store.scratch))) == 21, "twenty that have ended, and the last one"
    assert watch(store, PRICES, time.time()).sessions


def test_watching_without_a_journal_creates_nothing(store: RunStore) -> None:
    assert watch(store, PRICES, 0.0) == Watched(sessions=(), rows=(), finished=(), left_seconds=None)
    assert not store.root.exists()
