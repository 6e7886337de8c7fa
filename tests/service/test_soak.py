"""Mixed load for half an hour: only expected answers, and a process that doesn't grow.

`CLAIMCHECK_SOAK_SECONDS` shortens it, for a quick check.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from service.queries import find_checkpoints
from stages.recording import record
from stages.results import open_results
from tests.service.mixed_load import Load, Watch
from tests.service.results_factory import make_root
from tests.service.running import running
from tests.soak import write_soak_report

SECONDS = float(os.environ.get("CLAIMCHECK_SOAK_SECONDS", "1800"))
PER_SECOND, CLIENTS = 8.0, 4
MAX_GROWTH_MEGABYTES = 16
SWAP_SECONDS = 20


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
def test_mixed_load_gets_the_expected_answers_and_leaves_memory_flat(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    record(root, "data/results.db")
    database = root / "data" / "results.db"
    with open_results(str(database))() as session:
        (gone,) = find_checkpoints(session, ["ninformer-cifar10.vit.0"])
    (root / gone.path).unlink()
    limits = {"MAX_IMAGE_BYTES": "300000", "MAX_BODY_BYTES": "1000000", "MAX_IMAGES": "4", "MAX_PIXELS": "40000000"}
    # smaller than all models together, so some are loaded again and again
    limits |= {"MODEL_MEMORY_BYTES": "100000", "THREADS": "1"}
    with running(root, tmp_path, **{f"CLAIMCHECK_{name}": value for name, value in limits.items()}) as service:
        load, watch = Load(service, gone.run_key, clients=CLIENTS, per_second=PER_SECOND), Watch(service.process.pid)
        swapped = time.monotonic()
        swaps = 0

        def meanwhile() -> None:
            nonlocal swapped, swaps
            watch.look()
            if time.monotonic() - swapped > SWAP_SECONDS:
                shutil.copy(database, f"{database}.new")
                os.replace(f"{database}.new", database)
                swapped, swaps = time.monotonic(), swaps + 1

        load.run(SECONDS, meanwhile)
        report = facts(load, watch) | {"databases_swapped": swaps}
        assert service.process.poll() is None
    write_soak_report("mixed-load", report)
    assert load.unexpected == []
    assert {status for _, status in load.answers if status >= 500} == {503}, "only the model that was taken away"
    assert watch.growth(watch.megabytes) < MAX_GROWTH_MEGABYTES, report["megabytes"]
    assert abs(watch.growth(watch.files)) <= 8 and abs(watch.growth(watch.threads)) <= 4


def facts(load: Load, watch: Watch) -> dict[str, object]:
    count = sum(load.answers.values())
    statuses: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    for (kind, status), number in load.answers.items():
        statuses[str(status or "none")] += number
        kinds[kind] += number
    p50, p99 = np.quantile(load.seconds, [0.5, 0.99])
    return {
        "minutes": round(watch.seconds[-1] / 60, 1),
        "requests": count,
        "by_kind": dict(sorted(kinds.items())),
        "by_status": dict(sorted(statuses.items())),
        "unexpected": load.unexpected[:20],
        "milliseconds": {"p50": round(1000 * float(p50), 1), "p99": round(1000 * float(p99), 1)},
        "processor_seconds": round(watch.processor_seconds, 1),
        "megabytes": watch.by_parts(30),
        "megabytes_grown": round(watch.growth(watch.megabytes), 1),
        "open_files": {"second_quarter_to_last": watch.growth(watch.files), "most": max(watch.files)},
        "threads": {"second_quarter_to_last": watch.growth(watch.threads), "most": max(watch.threads)},
    }
