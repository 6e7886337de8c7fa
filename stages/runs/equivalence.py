"""Lines of `data/evidence/equivalences.jsonl`: changes of code that were shown to change no number, and their chains.

`claimcheck equivalent` (`stages.proving`) writes them.  A line is about whole fingerprints: the code before and
the code after gave, bit by bit, the same state, losses and weights on a path.  A path is what decides which branches
a training takes: its spec without seeds, and with numbers only as zero or not, trained alone or in a stack, on a CPU.
The line covers nothing else: no other model, precision, optimiser or device, nor the same code next to modules other
than those that ran.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from stages.run import STRICT, canonical_json
from stages.runs.evidence import EQUIVALENCES, EvidenceError, read_lines, seal
from stages.runs.fingerprint import code_today, module_digest, source_digest, source_path
from stages.runs.revisions import GitError, is_full_clone, read_objects

PATH = Path("data/evidence") / EQUIVALENCES
Digests = tuple[str | None, str | None]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A training with the same result under both codes: which run, how many steps (by batch size), on which data.

    `path` is that of the whole run, `state` the digests of everything compared, by number of threads.  `is_plain`: both
    without fast paths in C++.
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
    """Digests of all modules of a fingerprint, before and after (None: not part of it), and what ran through them."""

    __pydantic_config__: ClassVar = STRICT
    modules: Mapping[str, Digests]
    compared: tuple[Compared, ...]

    def code(self, side: Literal[0, 1]) -> dict[str, str]:
        """The fingerprint before (0) or after (1)."""
        return {module: digest for module, pair in self.modules.items() if (digest := pair[side]) is not None}


@dataclass(frozen=True, kw_only=True)
class EquivalenceLine:
    """One call of `claimcheck equivalent`: revisions before and after, when and where, and what was shown.

    `digest`: sha256 over the canonical line without it, as in evidence lines.
    """

    __pydantic_config__: ClassVar = STRICT
    before: str
    after: str
    made: str
    device: Literal["cpu"]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    proofs: tuple[Proof, ...]
    digest: str | None = None


def path_of(spec: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over what in a spec selects branches: not code, data, seed nor sizes of numbers."""
    kept = {
        "model": spec["model"],
        "protocol": spec["protocol"],
        "fold": spec.get("replicate", {}).get("fold") is not None,
    }
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
    path = root / PATH
    if not path.is_file():
        return Equivalences(())
    lines = read_lines(path, EquivalenceLine)
    for number, (line, text) in enumerate(zip(lines, path.read_bytes().splitlines(), strict=True), start=1):
        wanted = seal(json.loads(text))["digest"]
        if line.digest != wanted:
            found = f"its digest is {line.digest[:12]}" if line.digest else "it has no digest"
            raise EvidenceError(
                f"{path}, line {number}: {found}, its content gives {wanted[:12]}: it was changed since; "
                f"restore it from git, or prove it again (claimcheck equivalent {line.before[:12]})"
            )
    return Equivalences(lines, root)


def _line_faults(root: Path, number: int, line: EquivalenceLine) -> list[str]:
    where, found = f"{PATH}, line {number}", []
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
            names = [f"{revision}:{path}" for module, _ in pairs for path in paths_of(module)]
            commit, *sources = read_objects(root, [f"{revision}^{{commit}}", *names])
        except GitError:
            return []
        if commit is None:
            if is_full_clone(root):
                found.append(f"{where}: there is no revision {revision[:12]} in this repository")
            continue
        wrong = {
            module
            for (module, digest), file, package in zip(pairs, sources[::2], sources[1::2], strict=True)
            if digest != source_digest((file or package or b"").decode())
        }
        if wrong:
            found.append(f"{where}: revision {revision[:12]} has another {', '.join(sorted(wrong))}")
    return found


def paths_of(module: str) -> tuple[str, str]:
    """The two paths below the root at one of which a module's source is."""
    base = module.replace(".", "/")
    return f"{base}.py", f"{base}/__init__.py"


def append_line(root: Path, line: EquivalenceLine) -> None:
    """Add the line, with its digest, to the file below `root`."""
    path = root / PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(canonical_json(seal(json.loads(json.dumps(asdict(line))))) + "\n")


Code = Mapping[str, str]
Edge = tuple[str, str, int]
"""Two fingerprints, and the number of the line that takes the first to the second."""


@dataclass(frozen=True)
class Equivalences:
    """Chains of lines from one fingerprint to another; without lines, every question is free.

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
        """Numbers of the lines in the shortest chain from the run's own code to `code`; None if there is no chain.

        There is none for a run that wasn't made by one process on a CPU, nor by lines of which git lacks a revision.
        """
        if spec["code"] == code:
            return ()
        if not self.lines or not is_of_one_cpu(environment):
            return None
        edges = self._edges.get((path_of(spec), "stacked" in environment), [])
        target = canonical_json(code)
        for reached, numbers in _walk(canonical_json(spec["code"]), edges):
            if reached == target:
                return numbers if self.hold(numbers) else None
        return None

    def hold(self, numbers: Iterable[int]) -> bool:
        """True if git has the revisions of these lines, or can't be asked."""
        found = [fault for number in numbers for fault in self.faults(number)]
        if wrong := [fault for fault in found if " has another " in fault]:
            raise EvidenceError("; ".join(wrong))
        return not found

    def faults(self, number: int) -> list[str]:
        """The revisions of a line that git lacks or that have other code than it says; none in a shallow clone."""
        if number not in self._faults and self.root is not None:
            self._faults[number] = _line_faults(self.root, number, self.lines[number - 1])
        return self._faults.get(number, [])

    def today(self, spec: Mapping[str, Any], environment: Mapping[str, Any]) -> tuple[int, ...] | None:
        """`chain` to the code of the run's training in this tree."""
        code = code_today(spec) if self.lines else None
        return None if code is None else self.chain(spec, environment, code)

    def earlier(self, spec: Mapping[str, Any]) -> list[tuple[Code, bool, tuple[int, ...]]]:
        """Other fingerprints whose outcomes are those of `spec`, nearest first: trained in a stack or not, by which
        lines.
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
        """Lines that lead nowhere: the module they end at is neither in the tree nor continued by a later line."""
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
                    f"{PATH}, line {number}: {', '.join(lost)} {'is' if len(lost) == 1 else 'are'} not in the tree as "
                    "the line leaves it, and no later line takes it further: runs of older code are not current by it; "
                    f"`claimcheck equivalent {line.after[:12]}` shows whether the change since changes no number"
                )
        return found


def is_of_one_cpu(environment: Mapping[str, Any]) -> bool:
    """True if a single process trained on a CPU, as both sides of every line did."""
    return str(environment.get("device", "")).startswith("cpu") and "data_parallel" not in environment


def _walk(start: str, edges: Iterable[Edge]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Everything that the edges lead to from `start`, nearest first, each with the numbers of the lines on the way."""
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
