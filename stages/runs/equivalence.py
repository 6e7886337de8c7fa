"""Lines of `data/evidence/equivalences.jsonl`: code changes that were proven to change no number, and their chains.

`claimcheck equivalent` (`stages.upkeep.proving`) writes them.  A line is about whole fingerprints: on a path, the code
before and the code after gave the same state, losses and weights, bit by bit.  A path decides which branches a training
takes.  It is a spec without seeds, in which numbers count only as zero or not, trained alone or in a stack, on a CPU.
The line covers nothing else: no other model, precision, optimiser or device, and no other modules than those that ran.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from stages.run import STRICT, canonical_json
from stages.runs.evidence import EQUIVALENCES, EvidenceError, SealedLine, read_lines, write_lines
from stages.runs.fingerprint import code_today, module_digest, source_digest, source_path
from stages.runs.revisions import GitError, is_full_clone, read_objects

PATH = Path("data/evidence") / EQUIVALENCES
Digests = tuple[str | None, str | None]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A training with the same result under both codes; `steps` has the number of steps by batch size.

    `path` is that of the whole run.  `state` has digests of everything compared, by number of threads.  `is_plain`:
    neither side used fast paths in C++.
    """

    __pydantic_config__: ClassVar = STRICT
    run: str
    run_key: str
    path: str
    model: str
    kind: Literal["images", "table", "text"]
    precision: str
    optimizer: str
    is_stacked: bool
    data: str
    steps: Mapping[str, int]
    state: Mapping[str, str]
    is_plain: bool = False


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Digests of all modules of a fingerprint, before and after (None: not part of it), and the trainings compared."""

    __pydantic_config__: ClassVar = STRICT
    modules: Mapping[str, Digests]
    compared: tuple[Compared, ...]

    def code(self, side: Literal[0, 1]) -> dict[str, str]:
        """Return the fingerprint before (0) or after (1)."""
        return {module: digest for module, pair in self.modules.items() if (digest := pair[side]) is not None}


@dataclass(frozen=True, kw_only=True)
class EquivalenceLine(SealedLine):
    """One call of `claimcheck equivalent`: the two revisions, time and machine, and what was proven."""

    before: str
    after: str
    made: str
    device: Literal["cpu"]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    proofs: tuple[Proof, ...]

    @property
    def remedy(self) -> str:
        return f"prove it again (claimcheck equivalent {self.before[:12]})"


def path_of(spec: Mapping[str, Any]) -> str:
    """Return sixteen hexadecimal digits over what selects branches in a spec: not code, data, seed or sizes."""
    kept = {
        "model": spec["model"],
        "protocol": spec["protocol"],
        "fold": spec.get("replicate", {}).get("fold") is not None,
    }
    kept |= {name: spec[name] for name in ("task", "task_class") if name in spec}
    return hashlib.sha256(canonical_json(_outline(kept)).encode()).hexdigest()[:16]


def _outline(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _outline(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_outline(item) for item in value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return 0 if value == 0 else "a number"


def read_equivalences(root: Path) -> Equivalences:
    """Read the lines of the file below `root`; none if there is no file."""
    return Equivalences(read_lines(root / PATH, EquivalenceLine), root)


def paths_of(module: str) -> tuple[str, str]:
    """Return the two possible paths of a module's source, relative to the root."""
    base = module.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"


def append_line(root: Path, line: EquivalenceLine) -> None:
    """Add the line, with its digest, to the file below `root`."""
    path = root / PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(write_lines([line]))


Code = Mapping[str, str]
Edge = tuple[str, str, int]
"""Two fingerprints, and the number of the line that proves them equal."""


@dataclass(frozen=True)
class Equivalences:
    """Chains of lines from one fingerprint to another.

    With a `root`, a line counts only if the revisions that it names have the code that it names.
    """

    lines: Sequence[EquivalenceLine]
    root: Path | None = None
    _edges: dict[tuple[str, bool], list[Edge]] = field(default_factory=dict)
    _faults: dict[int, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, line in enumerate(self.lines, start=1):
            for proof in line.proofs:
                edge = canonical_json(proof.code(0)), canonical_json(proof.code(1)), number
                for compared in proof.compared:
                    self._edges.setdefault((compared.path, compared.is_stacked), []).append(edge)

    def __bool__(self) -> bool:
        return bool(self.lines)

    def chain(self, spec: Mapping[str, Any], environment: Mapping[str, Any], code: Code) -> tuple[int, ...] | None:
        """Return the numbers of the lines in the shortest chain from the run's own code to `code`, or None.

        A run that wasn't trained by one process on a CPU has no chain.  A line counts only if git has its revisions.
        """
        if spec["code"] == code:
            return ()
        if not self.lines or not is_of_one_cpu(environment):
            return None
        edges = self._edges.get((path_of(spec), "stacked" in environment), [])
        numbers = dict(_walk(canonical_json(spec["code"]), edges)).get(canonical_json(code))
        return numbers if numbers and self.hold(numbers) else None

    def hold(self, numbers: Iterable[int]) -> bool:
        """Return True if git has the revisions of these lines, or can't be asked."""
        found = [fault for number in numbers for fault in self.faults(number)]
        if wrong := [fault for fault in found if " has another " in fault]:
            raise EvidenceError("; ".join(wrong))
        return not found

    def faults(self, number: int) -> list[str]:
        """Describe revisions of a line that git lacks or that have other code than it says; none in a shallow clone."""
        if self.root is None or number in self._faults:
            return self._faults.get(number, [])
        line, found = self.lines[number - 1], list[str]()
        for side, revision in enumerate((line.before, line.after)):
            pairs = list(
                {
                    (name, digest)
                    for proof in line.proofs
                    for name, pair in proof.modules.items()
                    if (digest := pair[side]) and "==" not in digest  # a package's version isn't in git
                }
            )
            try:
                names = [f"{revision}:./{path}" for module, _ in pairs for path in paths_of(module)]
                commit, *sources = read_objects(self.root, [f"{revision}^{{commit}}", *names])
            except GitError:
                found = []
                break
            if commit is None:
                if is_full_clone(self.root):
                    found.append(f"there is no revision {revision[:12]} in this repository")
                continue
            wrong = {
                module
                for (module, digest), file, package in zip(pairs, sources[::2], sources[1::2], strict=True)
                if digest != source_digest((file or package or b"").decode())
            }
            if wrong:
                found.append(f"revision {revision[:12]} has another {', '.join(sorted(wrong))}")
        self._faults[number] = [f"{PATH}, line {number}: {fault}" for fault in found]
        return self._faults[number]

    def today(self, spec: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return the `chain` to the code of the run's training in this tree."""
        code = code_today(spec) if self.lines else None
        return None if code is None else self.chain(spec, environment, code)

    def earlier(self, spec: Mapping[str, Any]) -> list[tuple[Code, bool, tuple[int, ...]]]:
        """Return other fingerprints with the same outcome as `spec`, nearest first.

        Each comes with whether its run was stacked, and the numbers of the lines that prove it.
        """
        if not self.lines:
            return []
        found = []
        for is_stacked in (False, True):
            edges = self._edges.get((path_of(spec), is_stacked), [])
            start = canonical_json(spec["code"])
            for reached, numbers in _walk(start, [(new, old, number) for old, new, number in edges]):
                if reached != start:
                    found.append((json.loads(reached), is_stacked, numbers[::-1]))
        return sorted(found, key=lambda item: len(item[2]))

    def loose_ends(self) -> list[str]:
        """Describe lines whose resulting code is neither in the tree nor the start of a later line."""
        found = []
        for number, line in enumerate(self.lines, start=1):
            later = {
                (module, pair[0])
                for other in self.lines[number:]
                for proof in other.proofs
                for module, pair in proof.modules.items()
            }
            after = {(module, pair[1]) for proof in line.proofs for module, pair in proof.modules.items()}
            after = {(module, digest) for module, digest in after if digest and "==" not in digest}
            ends = {(module, source_path(module), digest) for module, digest in after - later}
            lost = sorted({module for module, path, digest in ends if not path or module_digest(path) != digest})
            if lost:
                found.append(
                    f"{PATH}, line {number}: {', '.join(lost)} changed after it, and no later line covers that change: "
                    f"runs of older code are not current by it; `claimcheck equivalent {line.after[:12]}` shows "
                    "whether the change leaves all numbers the same"
                )
        return found


def is_of_one_cpu(environment: Mapping[str, Any]) -> bool:
    """Return True if a single process trained on a CPU, as both sides of every line did."""
    return str(environment.get("device", "")).startswith("cpu") and "data_parallel" not in environment


def _walk(start: str, edges: Iterable[Edge]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every fingerprint that can be reached from `start`, nearest first, with the numbers of the lines."""
    following: dict[str, list[tuple[str, int]]] = {}
    for source, target, number in edges:
        following.setdefault(source, []).append((target, number))
    seen, queue = {start}, deque[tuple[str, tuple[int, ...]]]([(start, ())])
    while queue:
        node, numbers = queue.popleft()
        yield node, numbers
        for target, number in following.get(node, []):
            if target not in seen:
                seen.add(target)
                queue.append((target, (*numbers, number)))
