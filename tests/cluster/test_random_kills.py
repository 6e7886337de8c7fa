"""Random kills of whatever takes part: nodes, tasks, the process that speaks with Ray, the engine itself.

`CLAIMCHECK_SOAK_KILLS` says how many, `CLAIMCHECK_SOAK_SEED` the seed.  tests/scheduling/test_kill.py does it to the
local engine.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.cluster.nodes import Nodes, name_of
from tests.cluster.test_faults import (
    finish,
    lost_reasons,
    start,
)
from tests.project import outcomes
from tests.soak import write_soak_report

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(6 * 3600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]

KILLS = int(os.environ.get("CLAIMCHECK_SOAK_KILLS", "50"))
SEED = int(os.environ.get("CLAIMCHECK_SOAK_SEED", "0"))
A_TRAINING = 4
"""Kills, after which it may end."""


def kill_something(process: subprocess.Popen[bytes], cluster: Nodes, random_: random.Random) -> str:
    """Returns what was killed, or nothing where it wasn't there."""
    what = random_.choice(["task", "task", "node", "bridge", "engine"])
    trainings = cluster.trainings()
    bridges = [child for child in psutil.Process(process.pid).children() if "spawn_main" in name_of(child)]
    if what == "task" and trainings:
        random_.choice(trainings).kill()
    elif what == "node":
        cluster.kill(random_.choice(cluster.workers))
        cluster.add(1)
    elif what == "bridge" and bridges:
        bridges[0].kill()
    elif what == "engine":
        process.kill()
        process.wait()
    else:
        return "nothing"
    return what


def test_killed_at_random_moments_every_result_is_there_once(
    two_nodes: Nodes, template: Path, tmp_path: Path, undisturbed: dict[str, tuple[bytes, bytes]]
) -> None:
    random_, killed, trainings = random.Random(SEED), Counter[str](), 0
    while killed.total() < KILLS:
        project = Path(shutil.copytree(template, tmp_path / str(trainings)))
        process = start(project, two_nodes)
        for _ in range(min(A_TRAINING, KILLS - killed.total())):
            time.sleep(random_.uniform(5, 25))
            if process.poll() is not None:
                break
            killed[kill_something(process, two_nodes, random_)] += 1
            if process.poll() is not None:
                process = start(project, two_nodes)
        finish(process, project)
        assert outcomes(project) == undisturbed
        lost_reasons(project)
        trainings += 1
        write_soak_report(
            "killed-on-ray",
            {
                "what": "kill -9 of nodes, tasks, bridge and engine at random moments of `claimcheck run --all`",
                "seed": SEED,
                "commands": trainings,
                "kills": dict(sorted(killed.items())),
                "outcome": "histories and weights bitwise those of an undisturbed training, each published once",
            },
        )
