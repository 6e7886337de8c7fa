"""One of many processes that train the same tiny runs: `python racer.py STORE LOG SEED RUNS`.

It runs until all are published, and acts as a machine of its own, so that only a timeout shows that it is gone. Its
clock is off by minutes, and leases expire within a second. Every claim, publication and loss is logged.
"""

import hashlib
import json
import random
import sys
import time
from contextlib import suppress
from pathlib import Path

from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore, Store, seal
from stages.scheduling import leases as leases_module
from stages.scheduling.leases import Lease, LeaseLost, Leases

EXPIRY_SECONDS, HEARTBEAT_SECONDS = 0.4, 0.1
MOST_MINUTES = 10
AT_ONCE = 8
"""Number of runs wanted at a time, so that several processes want each."""


def keys_of(runs: int) -> dict[str, bytes]:
    """Return run keys by spec."""
    specs = [json.dumps({"run": number}).encode() for number in range(runs)]
    return {hashlib.sha256(spec).hexdigest(): spec for spec in specs}


def outcome(run_key: str, spec: bytes, token: int) -> dict[str, bytes]:
    """An outcome that contains the token under which it was trained."""
    result = {"run_key": run_key, "token": token, "weights_sha256": hashlib.sha256(spec * 100).hexdigest()}
    files = {"spec.json": spec, "history.jsonl": b"{}\n", "weights.safetensors": spec * 100}
    return seal({**files, "result.json": json.dumps(result).encode()})


def claim(leases: Leases, *run_keys: str) -> Lease:
    """Claim free runs."""
    lease = leases.claim(*run_keys)
    assert lease is not None
    return lease


def contents(folder: Path | None) -> dict[str, bytes]:
    assert folder is not None
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def open_store(address: str, cache: Path) -> Store:
    return ObjectStore(address, cache) if "://" in address else RunStore(Path(address))


def main(address: str, log: Path, seed: int, runs: int) -> None:
    rng = random.Random(seed)
    skew = rng.uniform(-60.0, 60.0) * MOST_MINUTES
    leases_module.EXPIRY_SECONDS, leases_module.HEARTBEAT_SECONDS = EXPIRY_SECONDS, HEARTBEAT_SECONDS
    store = open_store(address, log.with_suffix(".cache"))
    leases = Leases(store, f"machine-{seed}:boot:1:{seed}:1", clock=lambda: time.time() + skew)
    left = keys_of(runs)
    with log.open("a", encoding="utf-8", buffering=1) as lines:
        while left:
            run_key = rng.choice(list(left)[:AT_ONCE])
            lease = None if store.has(run_key) else leases.claim(run_key)
            if lease is None:
                if store.has(run_key):
                    del left[run_key]
                else:
                    time.sleep(rng.uniform(0.0, 0.05))
                continue
            ((_, token),) = lease.tokens
            lines.write(f"claimed {run_key} {token}\n")
            with suppress(LeaseLost), leases.kept_alive(lease):
                if store.has(run_key):
                    leases.close(lease, None)
                    continue
                time.sleep(rng.uniform(0.0, 0.2))
                try:
                    leases.publish(lease, run_key, outcome(run_key, left[run_key], token))
                except LeaseLost:
                    lines.write(f"lost {run_key} {token}\n")
                else:
                    lines.write(f"published {run_key} {token}\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
