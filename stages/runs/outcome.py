"""The files of a published outcome, and a check that they are unchanged.  Standard library only.

`result.json` names one digest over the whole outcome: every other file, and all that the result itself says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

RESULT = "result.json"
FILES = ("spec.json", "history.jsonl", RESULT, "weights.safetensors")
_DIGEST = "outcome_sha256"
_DIGESTS: dict[tuple[int, ...], str] = {}
"""By the identity of a file as the system tells it, with its last change."""


def seal(files: Mapping[str, bytes], known: Mapping[str, str] | None = None) -> dict[str, bytes]:
    """`files` of an outcome, with their joint digest written into `result.json`.

    `known`: the sha256 of large files that the caller has taken already.
    """
    result = json.loads(files[RESULT])
    result.pop(_DIGEST, None)
    digests = dict(known or {})
    for name, content in files.items():
        if name not in {RESULT, *digests}:
            digests[name] = hashlib.sha256(content).hexdigest()
    return {**files, RESULT: _canonical(result | {_DIGEST: _combine(digests, result)})}


def find_fault(outcome: Path | Mapping[str, bytes], run_key: str) -> str | None:
    """The fault of an outcome, in a folder or as bytes by file, or None if it is complete and belongs to `run_key`.

    Outcomes of older versions have no digest over all; theirs covers only spec and weights.
    """
    try:
        if isinstance(outcome, Path):
            digests, content = file_digests(outcome), (outcome / RESULT).read_bytes()
        else:
            if strange := sorted(outcome.keys() - FILES):
                return f"{strange[0]} is no file of an outcome; those are {', '.join(FILES)}"
            digests = {name: hashlib.sha256(file).hexdigest() for name, file in outcome.items()}
            content = outcome.get(RESULT, b"")
        result = json.loads(content)
        if missing := [name for name in ("spec.json", "history.jsonl") if name not in digests]:
            return f"{missing[0]} is missing"
        if digests["spec.json"] != run_key:
            return f"spec.json is of run {digests['spec.json'][:12]}, not {run_key[:12]}, or was changed"
        if result["run_key"] != run_key:
            return f"result.json is of run {str(result['run_key'])[:12]}, not {run_key[:12]}"
        if digests.get("weights.safetensors") != result["weights_sha256"]:
            return "weights.safetensors is not the file that result.json names"
        sealed = result.pop(_DIGEST, None)
    except OSError as error:
        return f"{error.filename or outcome}: {error.strerror}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"result.json can't be read ({type(error).__name__})"
    others = {name: digest for name, digest in digests.items() if name != RESULT}
    if sealed is not None and sealed != _combine(others, result):
        return "history.jsonl or result.json is not as published: the digest over all of it is another"
    return None


def outcome_digest(folder: Path, *, is_whole: bool = False) -> str:
    """sha256 over the names and contents of an outcome's files.

    `is_whole`: it was found so, or published, a moment ago; its weights aren't read then, as `result.json` has their
    digest, and whoever evaluates the outcome compares the two.
    """
    digests = file_digests(folder, FILES[:-1] if is_whole else FILES)
    if is_whole and (weights := json.loads((folder / RESULT).read_bytes())["weights_sha256"]):
        digests[FILES[-1]] = weights
    lines = "".join(f"{name} {digest}\n" for name, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def file_digests(folder: Path, names: Iterable[str] = FILES) -> dict[str, str]:
    """sha256 of each file of the outcome in `folder`; a file is read once per process, under all its names."""
    found = {}
    for name in names:
        path = folder / name
        if path.is_file():
            status = path.stat()
            identity = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
            if identity not in _DIGESTS:
                with path.open("rb") as file:
                    _DIGESTS[identity] = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = _DIGESTS[identity]
    return found


def _combine(digests: Mapping[str, str], result: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical([sorted(digests.items()), result])).hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
