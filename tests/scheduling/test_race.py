"""Many processes, on as many machines with clocks that are minutes apart, race for the same runs and are killed or
stopped for a while at random: each run is published once, no token is given twice, no late riser publishes.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stages.runs.outcome import find_fault
from tests.project import environment
from tests.scheduling import racer
from tests.soak import write_soak_report


@pytest.fixture(params=["folder", "objects"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "objects":
        return str(request.getfixturevalue("object_url"))
    return str(tmp_path / "store")


def start(address: str, folder: Path, seed: int, runs: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", racer.__file__, address, str(folder / f"{seed}.log"), str(seed), str(runs)]
    return subprocess.Popen(command, env=environment())


def race(
    address: str, folder: Path, *, processes: int, runs: int, seed: int, disturbances: int, every: float
) -> Counter[str]:
    """Let them race until all runs are published, disturbing one about every so many seconds; what was done to them."""
    rng, numbers, done = random.Random(seed), itertools.count(), Counter[str]()
    racing = [start(address, folder, next(numbers), runs) for _ in range(processes)]
    asleep: dict[int, float] = {}  # by process id: when to wake it
    while racing and done.total() < disturbances:
        time.sleep(rng.uniform(0.5, 1.5) * every)
        for pid in [pid for pid, when in asleep.items() if time.monotonic() > when]:
            os.kill(pid, signal.SIGCONT)
            del asleep[pid]
        for process in [one for one in racing if one.poll() is not None]:
            assert process.returncode in (0, -signal.SIGKILL)
            racing.remove(process)
            if process.returncode:
                racing.append(start(address, folder, next(numbers), runs))
        awake = [one for one in racing if one.pid not in asleep and _is_training(one)]
        if awake and rng.random() < 0.5:
            rng.choice(awake).kill()
            done["killed"] += 1
        elif awake:
            pid = rng.choice(awake).pid
            os.kill(pid, signal.SIGSTOP)
            asleep[pid] = time.monotonic() + 5 * racer.EXPIRY_SECONDS
            done["stopped for a while"] += 1
    for pid, when in asleep.items():  # they wake up late, when others have long taken over
        time.sleep(max(0.0, when - time.monotonic()))
        os.kill(pid, signal.SIGCONT)
    for process in [*racing, start(address, folder, next(numbers), runs)]:
        assert process.wait(timeout=600) in (0, -signal.SIGKILL)
    return done


def _is_training(process: subprocess.Popen[bytes]) -> bool:
    """True if it holds a run: the last line of its log is a claim."""
    assert isinstance(process.args, list)
    log = Path(process.args[4])
    return log.exists() and log.read_text().rpartition("\n")[0].rpartition("\n")[2].startswith("claimed")


def check(address: str, folder: Path, runs: int) -> Counter[str]:
    """Every promise, from what lies in the store and what each process wrote down; how often each thing happened."""
    store = racer.open_store(address, folder / "cache")
    leases = racer.open_leases(store, "machine:boot:1:1:1", racer.SimpleNamespace(time=time.time))
    events = [tuple(line.split()) for log in folder.glob("*.log") for line in log.read_text().splitlines()]
    claimed = Counter((key, token) for what, key, token in events if what == "claimed")
    published = Counter(key for what, key, _ in events if what == "published")
    assert set(claimed.values()) == {1}, "no token is given twice"
    assert set(published.values()) == {1}, "nothing is published twice"
    assert sorted(store.run_keys()) == sorted(racer.keys_of(runs))
    by_key = {key: int(token) for what, key, token in events if what == "published"}
    for run_key in racer.keys_of(runs):
        outcome = store.published(run_key)
        assert outcome is not None and find_fault(outcome, run_key) is None, "whole"
        token = json.loads((outcome / "result.json").read_bytes())["token"]
        assert by_key.get(run_key, token) == token, "the outcome is that of the process that says so"
        attempts = leases.attempts(run_key)
        assert [one.token for one in attempts] == sorted({one.token for one in attempts})
        assert [one.token for one in attempts if one.end == "published"] == [token]
        lost = {int(number) for what, key, number in events if what == "lost" and key == run_key}
        assert token not in lost, "who was told that it lost has published nothing"
    taken_over = sum(one.end == "lost" for run_key in racer.keys_of(runs) for one in leases.attempts(run_key))
    return Counter({"taken over": taken_over}) + Counter(what for what, *_ in events)


def test_each_run_is_published_once_whoever_is_killed(address: str, tmp_path: Path) -> None:
    disturbed = race(address, tmp_path, processes=4, runs=20, seed=1, disturbances=8, every=0.1)
    happened = check(address, tmp_path, runs=20)
    assert disturbed["killed"] and disturbed["stopped for a while"] and happened["taken over"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_thirty_two_processes_race_for_two_hundred_runs(
    address: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    disturbed = race(address, tmp_path, processes=32, runs=200, seed=2, disturbances=200, every=0.1)
    happened = check(address, tmp_path, runs=200)
    facts: dict[str, Any] = {
        "what": "processes with clocks minutes apart race for runs, are killed and stopped for a while at random",
        "store": request.node.callspec.id,
        "processes": 32,
        "runs": 200,
        "disturbed": dict(sorted(disturbed.items())),
        "happened": dict(sorted(happened.items())),
        "outcome": "each run published once and whole, no token given twice, no late riser published",
    }
    write_soak_report(f"race-{request.node.callspec.id}", facts)
    assert disturbed["killed"] and disturbed["stopped for a while"] and happened["lost"]
