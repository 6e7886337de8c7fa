"""Mixed load for two hours gives only expected answers and no growth.

In the first hour the SQLite database is replaced repeatedly. In the second one the results are in PostgreSQL, which is
killed and restarted, and inference and decoding processes are killed: 503 is then expected, too.
`CLAIMCHECK_SOAK_SECONDS` shortens each hour for a quick check.
"""

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psycopg
import pytest

from service.database.queries import find_checkpoints
from stages.recording.builder import record
from stages.results import open_results
from tests.postgres import cluster, find_programs
from tests.service.mixed_load import Load, Watch
from tests.service.results_factory import make_root
from tests.service.running import running
from tests.soak import write_soak_report

SECONDS = float(os.environ.get("CLAIMCHECK_SOAK_SECONDS", "3600"))
PER_SECOND, CLIENTS = 8.0, 4
MAX_GROWTH_MEGABYTES = 16
SWAP_SECONDS, KILL_SECONDS, RESTART_SECONDS = 20.0, 25.0, 70.0
AWAY_SECONDS = 3.0  # PostgreSQL, at each restart
RECOVERY_SECONDS = 10.0
LIMITS = {
    "CLAIMCHECK_MAX_IMAGE_BYTES": "300000",
    "CLAIMCHECK_MAX_BODY_BYTES": "1000000",
    "CLAIMCHECK_MAX_IMAGES": "4",
    "CLAIMCHECK_MAX_PIXELS": "40000000",
    "CLAIMCHECK_MODEL_MEMORY_BYTES": "100000",  # less than all models together, so that some are reloaded
    "CLAIMCHECK_THREADS": "1",
}


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(SECONDS + 600)
def test_mixed_load_gets_expected_answers_with_constant_memory(own_root: Path, tmp_path: Path) -> None:
    root = own_root
    database = root / "data" / "results.db"
    with open_results(str(database))() as session:
        (gone,) = find_checkpoints(session, ["ninformer-cifar10.vit.0"])
    (root / gone.path).unlink()
    with running(root, tmp_path, **LIMITS) as service:
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
    assert {status for _, status in load.answers if status >= 500} == {503}, "only the removed model"
    assert watch.growth(watch.megabytes) < MAX_GROWTH_MEGABYTES, report["megabytes"]
    assert abs(watch.growth(watch.files)) <= 8 and abs(watch.growth(watch.threads)) <= 4


@pytest.mark.slow(hours=True)
@pytest.mark.timeout(SECONDS + 600)
def test_killed_workers_and_restarted_postgresql_do_not_affect_other_requests(tmp_path: Path) -> None:
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server here; on Debian: apt install postgresql")
    root, rng = make_root(tmp_path), random.Random(0)
    with cluster(programs) as server:
        with psycopg.connect(f"{server.url}/postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE results")
        url = f"{server.url}/results"
        record(root, url)
        sessions = open_results(url)
        with sessions() as session:
            (gone,) = find_checkpoints(session, ["ninformer-cifar10.vit.0"])
        sessions.kw["bind"].dispose()
        (root / gone.path).unlink()
        with running(root, tmp_path, CLAIMCHECK_DATABASE=url, **LIMITS) as service:
            load, watch = (
                Load(service, gone.run_key, clients=CLIENTS, per_second=PER_SECOND),
                Watch(service.process.pid),
            )
            quiet_until = time.monotonic() + SECONDS / 6
            killed = restarted = quiet_until
            kills = restarts = 0

            def meanwhile() -> None:
                nonlocal killed, kills, restarted, restarts
                watch.look()
                if time.monotonic() - killed > KILL_SECONDS and (workers := watch.workers()):
                    load.excuse(RECOVERY_SECONDS)
                    rng.choice(workers).kill()
                    killed, kills = time.monotonic(), kills + 1
                if time.monotonic() - restarted > RESTART_SECONDS:
                    load.excuse(60.0)
                    server.stop()
                    time.sleep(AWAY_SECONDS)
                    server.start()
                    load.excused_until = time.monotonic() + RECOVERY_SECONDS
                    restarted, restarts = time.monotonic(), restarts + 1

            load.run(SECONDS, meanwhile)
            quiet, faulty = (
                float(
                    np.quantile([seconds for begun, seconds in load.honest if (begun < quiet_until) == is_quiet], 0.99)
                )
                for is_quiet in (True, False)
            )
            report = facts(load, watch) | {
                "workers_killed": kills,
                "postgresql_restarts": restarts,
                "honest_p99_milliseconds": {"quiet": round(1000 * quiet, 1), "with_faults": round(1000 * faulty, 1)},
            }
            assert service.process.poll() is None
    write_soak_report("mixed-load-with-faults", report)
    assert load.unexpected == []
    assert {status for _, status in load.answers if status >= 500} == {503}
    assert (kills or SECONDS < 2 * KILL_SECONDS) and (restarts or SECONDS < 2 * RESTART_SECONDS)
    # Kills change the current number of 330 MB workers, so check only what they could leave behind.
    assert watch.growth(watch.service_megabytes) < MAX_GROWTH_MEGABYTES


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
        "service_megabytes_grown": round(watch.growth(watch.service_megabytes), 1),
        "open_files": {"second_quarter_to_last": watch.growth(watch.files), "most": max(watch.files)},
        "threads": {"second_quarter_to_last": watch.growth(watch.threads), "most": max(watch.threads)},
    }
