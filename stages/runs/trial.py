"""One training as `record` and the claims see it: its result, what it cost, where it stands, what has changed since."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from stages.run import canonical_json
from stages.runs.evidence import INEXACT_SHARE, CostLine, Origin, Release, ResultLine


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A result with its cost, and the file and line where it stands.  `origin` is None for one of this working tree.

    `is_planned`: its model, and what its arm sets of the protocol, are what the params give this arm today;
    `follows_plan`: the whole protocol and the replicate are, too.  `varied`: protocol fields in which the experiment's
    arms differ on purpose.  `changed_code`: modules of its fingerprint whose source differs in the tree, or that
    it lacks; none if `equivalences`, numbers of lines, show that its code and the tree's give the same results.
    `digest`: that of the evidence line; "" for a local result.  `row`: its number in the database.
    """

    result: ResultLine
    cost: CostLine | None
    origin: Origin | None
    release: Release | None
    file: Path
    line: int
    is_planned: bool = True
    follows_plan: bool = True
    digest: str = ""
    varied: tuple[str, ...] = ()
    changed_code: tuple[str, ...] = ()
    equivalences: tuple[int, ...] = ()
    row: int = 0

    @property
    def source(self) -> Literal["evidence", "local"]:
        return "local" if self.origin is None else "evidence"

    @property
    def device(self) -> str:
        return str(self.result.environment.get("device_name", self.result.environment.get("device", "")))

    @property
    def identity(self) -> tuple[str, str, str, str, int]:
        line = self.result
        return line.run_key, line.environment_digest, line.experiment, line.arm, line.replicate

    @cached_property
    def conditions(self) -> str:
        """Digest of protocol, data and part of the test rows: what must be equal before two results are compared."""
        shared = {name: value for name, value in self.result.spec["protocol"].items() if name not in self.varied}
        data = self.result.data
        left_out = data.excluded_test_images / (data.test_images + data.excluded_test_images)
        part = [data.test_images] if left_out > INEXACT_SHARE else []
        text = canonical_json([shared, data.digest, *part])
        return hashlib.sha256(text.encode()).hexdigest()[:16]
