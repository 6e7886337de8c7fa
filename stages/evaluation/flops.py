"""Cache of measurements: forward FLOPs of models, and the results of evaluating runs.

Counting FLOPs loads torch's compiler, which takes longer than torch itself.  DVC removes a stage's outputs before it
runs: without the cache, a new replicate would cause all others to be re-evaluated.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from stages.faults import Mistake
from stages.params.callables import describe_guest, isolated
from stages.run import ModelSpec, canonical_json
from stages.runs.fingerprint import code_fingerprint, model_addresses
from stages.runs.store import home, locked, write_atomically

# Forward FLOPs of one row of a shape; the last argument is the vocabulary of tokens, None if rows are numbers.
CountFlops = Callable[[ModelSpec, tuple[int, ...], int | None], int]


class ModelFault(Mistake, ValueError):
    """A network that can't be built or gives no outputs; the message has the network's own error."""


class FlopCounts:
    """Counts FLOPs and caches them in `path` for as long as a model's code stays the same."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or home() / "flops.json"
        self.known = self._read()
        self.added = 0

    def _read(self) -> dict[str, int]:
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):  # nothing cached yet, or not by us: count again
            return {}
        return known if isinstance(known, dict) else {}

    def count(self, model: ModelSpec, shape: tuple[int, ...], vocabulary: int | None) -> int:
        """Forward FLOPs of one row of `shape`.

        Raises:
            ModelFault: the network fails.
        """
        modules = [address.partition(":")[0] for address in model_addresses(model.path, model.arguments)]
        parts = [model.path, dict(model.arguments), list(shape), vocabulary, _code(tuple(modules))]
        key = hashlib.sha256(canonical_json(parts).encode()).hexdigest()
        if key not in self.known:
            import torch  # a plan whose models have all been counted needs no torch

            from stages.evaluation.cost import flops_per_sample
            from stages.papers import build_model

            def count(device: str) -> int:
                with torch.device(device):
                    network = build_model(model)
                return flops_per_sample(network, shape, vocabulary, device=device)

            # Shapes without numbers, so that a model of any size is counted at once; another package's may read values.
            for device in ("meta", "cpu") if model.is_imported else ("meta",):
                try:
                    with isolated():
                        self.known[key] = count(device)
                    break
                except (Exception, SystemExit) as error:  # noqa: BLE001  (a user's code may raise anything)
                    fault = error
            else:
                name = model.arguments.get("address", model.path)
                raise ModelFault(f"{name} fails on a row of zeros {[*shape]}: {describe_guest(fault)}") from fault
            self.added += 1
        return self.known[key]

    def save(self) -> None:
        """Merge the new counts into those that other processes have saved since the file was read."""
        if not self.added:
            return
        with locked(self.path.with_suffix(".lock")):
            self.known |= self._read()
            write_atomically(self.path, (json.dumps(self.known, sort_keys=True, indent=0) + "\n").encode())
        self.added = 0


_code = cache(code_fingerprint)


def digest_of(parts: Any) -> str:
    """Return the sha256 of the JSON values that a measurement depends on."""
    return hashlib.sha256(canonical_json(parts).encode()).hexdigest()


class MeasurementCache:
    """Cache with one file per name: the newest measurement, its dependencies' digest, and a digest over both."""

    def __init__(self, kind: str) -> None:
        self.folder = home() / "store" / kind

    @contextmanager
    def held(self, name: str, *, waits: bool = True) -> Iterator[bool]:
        """Lock the measurement of this name; if another process holds it, wait or, without `waits`, yield False."""
        path = self.folder / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            yield True

    def read(self, name: str, stands_on: str) -> Any:
        """Return the measurement; None if it is missing or damaged, or its dependencies have changed."""
        try:
            content = json.loads((self.folder / f"{name}.json").read_bytes())
            is_whole = content.pop("digest") == digest_of(content)
            return content["measured"] if is_whole and content["stands_on"] == stands_on else None
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def write(self, name: str, stands_on: str, measured: Any) -> None:
        """Store JSON values under this name, replacing earlier ones."""
        content = {"stands_on": stands_on, "measured": measured}
        text = json.dumps(content | {"digest": digest_of(content)}, sort_keys=True)
        write_atomically(self.folder / f"{name}.json", f"{text}\n".encode())
