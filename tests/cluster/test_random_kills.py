"""After random faults, on either engine and either store, every result exists once, with the same bits.

Each seed selects a fault (`tests.cluster.mishaps`).  For the soak, `CLAIMCHECK_SOAK_KILLS` sets the number and
`CLAIMCHECK_SOAK_SEED` the first seed.
"""

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cluster.mishaps import Mishap
from tests.cluster.nodes import Nodes
from tests.object_server import ObjectServer

pytestmark = [
    pytest.mark.needs(cluster=True),
    pytest.mark.timeout(6 * 3600),
    pytest.mark.skipif(find_spec("ray") is None, reason="no Ray here; `make cluster` adds it"),
]

KILLS = int(os.environ.get("CLAIMCHECK_SOAK_KILLS", "100"))
SEED = int(os.environ.get("CLAIMCHECK_SOAK_SEED", "0"))
SOAK = [pytest.param(seed, marks=pytest.mark.slow(hours=True)) for seed in range(SEED, SEED + KILLS)]


@pytest.mark.parametrize("seed", [1, *SOAK])
def test_every_result_exists_once_after_a_fault(
    seed: int,
    two_nodes: Nodes,
    object_server: ObjectServer,
    small: Path,
    small_undisturbed: dict[str, tuple[bytes, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 1 kills a task; `test_faults.py` kills nodes, `tests/scheduling/test_kill.py` slots and parents."""
    for name, value in object_server.environment.items():
        monkeypatch.setenv(name, value)
    project = Path(shutil.copytree(small, tmp_path / str(seed)))
    mishap = Mishap(seed, project, two_nodes, object_server)
    try:
        mishap.suffer()
        mishap.check(small_undisturbed)
    finally:
        object_server.up()
