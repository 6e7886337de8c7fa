"""Many processes on simulated machines with wrong clocks race for the same runs while some are killed or suspended.

Each run is published once, no token is given twice, and no process publishes after a takeover.
"""

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.runs.store import RunStore, Store, find_fault
from stages.scheduling.leases import Leases
from tests.project import environment
from tests.scheduling import racer


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
    """Race until all runs are published, with disturbances at random intervals; return what was done."""
    started: list[subprocess.Popen[bytes]] = []

    def another() -> subprocess.Popen[bytes]:
        started.append(start(address, folder, len(started), runs))
        return started[-1]

    try:
        racing = [another() for _ in range(processes)]
        done = _disturb(racing, address, folder, another, random.Random(seed), disturbances, every)
        for process in [*racing, another()]:
            assert process.wait(timeout=600) in (0, -signal.SIGKILL)
    finally:
        for process in started:
            process.kill()
            process.wait()
    return done


def _disturb(
    racing: list[subprocess.Popen[bytes]],
    address: str,
    folder: Path,
    another: Callable[[], subprocess.Popen[bytes]],
    rng: random.Random,
    disturbances: int,
    every: float,
) -> Counter[str]:
    """Kill or suspend a process at random intervals, and replace killed ones."""
    done, store, processes = Counter[str](), racer.open_store(address, folder / "looking"), len(racing)
    asleep: dict[subprocess.Popen[bytes], float] = {}  # suspended since
    while asleep or (racing and done.total() < disturbances):
        time.sleep(rng.uniform(0.5, 1.5) * every)
        for process in [one for one, since in asleep.items() if _is_late(one, store, folder, since)]:
            process.send_signal(signal.SIGCONT)
            del asleep[process]
        for process in [one for one in racing if one.poll() is not None]:
            assert process.returncode in (0, -signal.SIGKILL)
            racing.remove(process)
            if process.returncode:
                racing.append(another())
        awake = [one for one in racing if one not in asleep and _claimed(one) is not None]
        if done.total() >= disturbances or not awake:
            continue
        process = rng.choice(awake)
        if done["stopped for a while"] > done["killed"] or len(asleep) >= processes // 2:  # needs a takeover
            process.kill()
            done["killed"] += 1
        else:
            process.send_signal(signal.SIGSTOP)
            asleep[process] = time.monotonic()
            done["stopped for a while"] += 1
    return done


def _is_late(process: subprocess.Popen[bytes], store: Store, folder: Path, since: float) -> bool:
    """Return True once a suspended process has a successor, however long that takes on this machine.

    There is none if it has published or holds the write lock of a folder's leases, which would block the others.
    """
    claimed, longest = _claimed(process), (5 if isinstance(store, RunStore) else 25) * racer.EXPIRY_SECONDS
    if claimed is None or store.has(claimed[0]) or time.monotonic() - since > longest:
        return True
    run_key, token = claimed
    lines = (line.split() for log in folder.glob("*.log") for line in log.read_text(encoding="utf-8").splitlines())
    return any(line[:2] == ["claimed", run_key] and int(line[2]) > token for line in lines)


def _claimed(process: subprocess.Popen[bytes]) -> tuple[str, int] | None:
    """Return the run and token that it holds, if the last line of its log is a claim."""
    assert isinstance(process.args, list)
    log = Path(process.args[4])
    last = log.read_text(encoding="utf-8").rpartition("\n")[0].rpartition("\n")[2].split() if log.exists() else []
    return (last[1], int(last[2])) if last[:1] == ["claimed"] else None


def check(address: str, folder: Path, runs: int) -> Counter[str]:
    """Check all guarantees against the store and the logs; count events."""
    store = racer.open_store(address, folder / "cache")
    leases = Leases(store, "machine:boot:1:1:1")
    events = [
        tuple(line.split()) for log in folder.glob("*.log") for line in log.read_text(encoding="utf-8").splitlines()
    ]
    claimed = Counter((key, token) for what, key, token in events if what == "claimed")
    published = Counter(key for what, key, _ in events if what == "published")
    assert set(claimed.values()) == {1}, "no token is given twice"
    assert set(published.values()) == {1}, "nothing is published twice"
    assert sorted(store.run_keys()) == sorted(racer.keys_of(runs))
    by_key = {key: int(token) for what, key, token in events if what == "published"}
    for run_key in racer.keys_of(runs):
        outcome = store.published(run_key)
        assert outcome is not None and find_fault(outcome, run_key) is None, "complete"
        token = json.loads((outcome / "result.json").read_bytes())["token"]
        assert by_key.get(run_key, token) == token, "the outcome is from the process that reported it"
        attempts = leases.attempts(run_key)
        assert [one.token for one in attempts] == sorted({one.token for one in attempts})
        assert [one.token for one in attempts if one.end == "published"] == [token]
        lost = {int(number) for what, key, number in events if what == "lost" and key == run_key}
        assert token not in lost, "a process that lost its lease has published nothing"
    taken_over = sum(one.end == "lost" for run_key in racer.keys_of(runs) for one in leases.attempts(run_key))
    return Counter({"taken over": taken_over}) + Counter(what for what, *_ in events)


@pytest.mark.parametrize(
    ("processes", "runs", "disturbances"),
    [
        (3, 12, 6),
        pytest.param(32, 200, 200, marks=[pytest.mark.slow(hours=True), pytest.mark.timeout(1800)]),
    ],
)
def test_each_run_is_published_once_despite_kills(
    address: str, tmp_path: Path, processes: int, runs: int, disturbances: int
) -> None:
    disturbed = race(address, tmp_path, processes=processes, runs=runs, seed=1, disturbances=disturbances, every=0.1)
    happened = check(address, tmp_path, runs)
    assert disturbed["killed"] and disturbed["stopped for a while"] and happened["taken over"]
    assert runs < 200 or happened["lost"], "some processes woke up late"
