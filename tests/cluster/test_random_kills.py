"""After random faults, on either engine and either store, every result exists once, with the same bits.

Each seed selects a fault (`tests.cluster.mishaps`).  `make test-cluster` runs five.  For the soak,
`CLAIMCHECK_SOAK_KILLS` sets the number and `CLAIMCHECK_SOAK_SEED` the first seed: if an earlier soak ended there, its
report is continued.
"""

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.mishaps import Mishap
from tests.cluster.nodes import Nodes
from tests.object_server import ObjectServer
from tests.soak import write_soak_report

pytestmark = [
    pytest.mark.needs(cluster=True),
    pytest.mark.timeout(6 * 3600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]

KILLS = int(os.environ.get("CLAIMCHECK_SOAK_KILLS", "100"))
SEED = int(os.environ.get("CLAIMCHECK_SOAK_SEED", "0"))
REPORT = "killed-at-random"

Try = Callable[[int], Mishap]


@pytest.fixture
def try_seed(
    two_nodes: Nodes,
    object_server: ObjectServer,
    small: Path,
    small_undisturbed: dict[str, tuple[bytes, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Try]:
    """Apply the fault of a seed and check the outcome."""
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)

    def suffer(seed: int) -> Mishap:
        project = Path(shutil.copytree(small, tmp_path / str(seed)))
        mishap = Mishap(seed, project, two_nodes, object_server)
        mishap.suffer()
        mishap.check(small_undisturbed)
        two_nodes.end_commands()
        return mishap

    yield suffer
    object_server.up()


def test_every_result_exists_once_after_a_killed_task(try_seed: Try) -> None:
    """`test_faults.py` kills nodes, `tests/scheduling/test_kill.py` slots and parents."""
    try_seed(1)


@pytest.mark.slow(hours=True)
def test_every_result_exists_once_after_a_hundred_faults(try_seed: Try) -> None:
    faults, stores, lost, again = _before()
    for seed in range(SEED, SEED + KILLS):
        began = time.monotonic()
        mishap = try_seed(seed)
        faults[f"{mishap.engine}: {mishap.what if mishap.is_struck else 'ended before'}"] += 1
        stores[mishap.store_kind] += 1
        lost.update(mishap.lost)
        again["commands started again"] += mishap.again
        print(f"seed {seed}: {mishap.engine}, {mishap.what}, {mishap.store_kind}, {time.monotonic() - began:.0f} s")
        write_soak_report(
            REPORT,
            {
                "what": "`claimcheck run` of two runs, during which something breaks at a random moment",
                "next_seed": seed + 1,
                "faults": dict(sorted(faults.items())),
                "stores": dict(sorted(stores.items())),
                "attempts lost": dict(sorted(lost.items())),
                **again,
                "outcome": "each run published once, histories and weights bitwise those of undisturbed trainings, "
                "every other attempt lost with a reason of this fault, no training continues, no state is left",
            },
        )


def _before() -> tuple[Counter[str], Counter[str], Counter[str], Counter[str]]:
    """Return the report that ended at this seed."""
    path = Path(os.environ.get("CLAIMCHECK_SOAK_REPORTS", "docs/soak")) / f"{REPORT}.json"
    known: dict[str, Any] = json.loads(path.read_text()) if SEED and path.exists() else {}
    if known.get("next_seed") != SEED:
        known = {}
    again = {"commands started again": known.get("commands started again", 0)}
    counts = [known.get(name, {}) for name in ("faults", "stores", "attempts lost")]
    return Counter(counts[0]), Counter(counts[1]), Counter(counts[2]), Counter(again)
