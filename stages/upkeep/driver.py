"""Trains the given jobs with one revision's code and records every step, for `stages.upkeep.proving` to compare.

`python -P driver.py <job.json>` runs in a process of its own, whose `PYTHONPATH` names the tree to run.  Each tree is
run by its own driver.  Only trees that are older than the first driver are run by a newer one.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import sys
import traceback
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import stages


def fingerprint(kind: str, model: str, optimizer: str) -> dict[str, str] | None:
    """Return the fingerprint of a training in this tree; None if it has no such model."""
    own = importlib.import_module("stages.runs.fingerprint")  # a tree without it has to fail, not to lack all models
    try:
        return dict(own.training_code(kind, model, optimizer))
    except ModuleNotFoundError:
        return None


class Trace:
    """The steps of a training: for each, its scores so far and a checksum of each tensor that an optimiser changed."""

    def __init__(self) -> None:
        self.scores: list[dict[str, str]] = []
        self.tensors: list[dict[str, int]] = []
        self._open: dict[str, int] = {}
        self._optimizers: dict[int, tuple[Any, dict[int, str]]] = {}

    def progress(self, progress: Any) -> None:
        """Record the end of a step."""
        self.scores.append({name: float(value).hex() for name, value in progress.scores.items()})
        self.tensors.append(self._open)
        self._open = {}

    def stepped(self, optimizer: Any, *_: Any) -> None:
        """Record an optimiser's step; one training step may contain several, nested."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer, name_tensors(parameters)
        _, names = self._optimizers[id(optimizer)]
        self._open |= {names[id(one)]: zlib.crc32(to_bytes(one)) for one in parameters}

    def state(self) -> dict[str, str]:
        """Return the sha256 of each tensor or number that the optimisers hold at the end."""
        return {
            f"{index}.{name}": hashlib.sha256(content).hexdigest()
            for index, (optimizer, _) in enumerate(self._optimizers.values(), start=1)
            for name, content in flatten(optimizer.state_dict())
        }


def name_tensors(parameters: list[Any]) -> dict[int, str]:
    """Return the parameters' names in the largest network that holds them, by the parameters' ids."""
    torch = importlib.import_module("torch")
    wanted = {id(one) for one in parameters}
    names: dict[int, str] = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.nn.Module):  # not isinstance, which would ask a weak reference's dead object
            held = {id(one): name for name, one in thing.named_parameters() if id(one) in wanted}
            names = held if len(held) > len(names) else names
    return {id(one): names.get(id(one), f"tensor {index}") for index, one in enumerate(parameters, start=1)}


def to_bytes(tensor: Any) -> bytes:
    torch = importlib.import_module("torch")
    content: bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return content


def flatten(value: Any, name: str = "") -> Iterator[tuple[str, bytes]]:
    if hasattr(value, "detach"):
        yield name, to_bytes(value)
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from flatten(value[key], f"{name}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flatten(item, f"{name}.{index}".lstrip("."))
    else:
        yield name, repr(value).encode()


def train(training: dict[str, Any], store: Path) -> dict[str, Any]:
    """Train the specs with `stages.worker`; return every step, and the state at the end."""
    worker = importlib.import_module("stages.worker")
    spec_class = importlib.import_module("stages.run").RunSpec
    hooks = importlib.import_module("torch.optim.optimizer")
    trace = Trace()
    jobs = [
        worker.Job(spec=spec_class.from_dict(spec), data=Path(training["data"]), device="cpu")
        for spec in training["specs"]
    ]
    scratch = importlib.import_module("stages.runs.store").FolderScratch(store / "work")
    hook = hooks.register_optimizer_step_post_hook(trace.stepped)
    try:
        if training["is_stacked"]:
            trained = worker.train_stack(jobs, scratch, progress=trace.progress)
        else:
            trained = worker.train_run(jobs[0], scratch, progress=trace.progress)
    finally:
        hook.remove()
    return {
        "scores": trace.scores,
        "tensors": trace.tensors,
        "optimizer": trace.state(),
        "outcomes": [describe_outcome(files) for files in trained.outcomes.values()],
    }


def describe_outcome(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return history, status, environment and the digest of each tensor of an outcome, given as contents by name."""
    result = json.loads(files["result.json"])
    tensors: dict[str, str] = {}
    if weights := files.get("weights.safetensors"):
        for name, array in sorted(importlib.import_module("safetensors.numpy").load(weights).items()):
            head = f"{array.dtype} {array.shape} ".encode()
            tensors[name] = hashlib.sha256(head + array.tobytes()).hexdigest()
    return {
        "status": result["status"],
        "divergence": result["divergence"],
        "history": [json.loads(line) for line in files["history.jsonl"].splitlines()],
        "weights": tensors,
        "environment": result["environment"],
    }


def main(job_file: str) -> int:
    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    tree = Path(job["tree"]).resolve()
    if not Path(stages.__file__).resolve().is_relative_to(tree):
        print(f"the code comes from {stages.__file__}, not from {tree}", file=sys.stderr)
        return 1
    if "codes" in job:
        answers = [fingerprint(*question) for question in job["codes"]]
        Path(job["output"]).write_text(json.dumps(answers), encoding="utf-8")
        return 0
    torch = importlib.import_module("torch")
    for threads in job["threads"]:
        torch.set_num_threads(threads)
        output = Path(job["output"]) / str(threads)
        output.mkdir(parents=True)
        for number, training in enumerate(job["trainings"]):
            try:
                found = train(training, output / "data" / "store")
            except Exception:  # noqa: BLE001  (any error is reported by name, and the others are compared)
                found = {"error": traceback.format_exc()}
            (output / f"{number}.json").write_text(json.dumps(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """Describe where two trainings differ, earliest step first; nothing if they are identical bit by bit."""
    scores, tensors = (list(zip(before[name], after[name], strict=False)) for name in ("scores", "tensors"))
    for number in range(max(len(scores), len(tensors))):
        found = []
        if number < len(tensors):
            found += [f"tensor {name}" for name in differing(*tensors[number])[:1]]
        if number < len(scores):
            for name in differing(*scores[number])[:1]:
                values = [float.fromhex(side[name]) if name in side else None for side in scores[number]]
                found.append(f"its {name} so far {values[0]!r} -> {values[1]!r}")
        if found:
            yield f"step {number + 1}: {', '.join(found)}"
    for name in ("scores", "tensors"):
        if len(before[name]) != len(after[name]):
            yield f"it took {len(before[name])} steps with the older code, {len(after[name])} with the newer"
    for name in differing(before["optimizer"], after["optimizer"]):
        yield f"after the last step: the optimiser's {name}"
    for number, (old, new) in enumerate(zip(before["outcomes"], after["outcomes"], strict=True), start=1):
        which = f" of network {number}" if len(before["outcomes"]) > 1 else ""
        for name in differing(old["weights"], new["weights"]):
            yield f"after the last step: tensor {name}{which}"
        for name in ("history", "status", "divergence"):
            if old[name] != new[name]:
                yield f"after the last step: its {name}{which}, {old[name]} -> {new[name]}"


def differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Names of the items that differ or are in only one of them, in the order of the first."""
    return [name for name in {**old, **new} if old.get(name) != new.get(name)]
