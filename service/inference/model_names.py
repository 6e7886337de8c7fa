"""Names of models under `/v2`, `<experiment>.<arm>` with a version, and of checkpoints elsewhere, one for both."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from sqlalchemy.orm import Session

from service.database.queries import FEW, ServedCheckpoint, list_checkpoints
from stages.results import UnknownName


class UnknownModel(UnknownName):
    """`known`: the models nearest to the name, or all where they are few."""

    kind = "model"


class UnknownVersion(UnknownName):
    kind = "version"


def find_versions(session: Session, model: str) -> list[ServedCheckpoint]:
    """The checkpoints of the model `<experiment>.<arm>`, by replicate.

    Raises:
        UnknownModel: no weights of such a model are here; of a checkpoint's id it names the model.
    """
    experiment, _, arm = model.partition(".")
    found = list_checkpoints(session, arm_of=(experiment, arm))
    if not found:
        raise UnknownModel(model[:120], _nearest(model, list_checkpoints(session)))
    return sorted(found, key=lambda served_checkpoint: served_checkpoint.replicate)


def find_version(versions: Sequence[ServedCheckpoint], version: str) -> ServedCheckpoint:
    """The version of this name.

    Raises:
        UnknownVersion: the model has no such version.
    """
    for served_checkpoint in versions:
        if served_checkpoint.model_version == version:
            return served_checkpoint
    raise UnknownVersion(version[:40], [served_checkpoint.model_version for served_checkpoint in versions[:FEW]])


def _nearest(name: str, served_checkpoints: Sequence[ServedCheckpoint]) -> list[str]:
    for row in served_checkpoints:
        if row.id == name:
            return [f"{row.model_name} (of which this is version {row.model_version})"]
    models = list(dict.fromkeys(row.model_name for row in served_checkpoints))
    return models if len(models) <= FEW else difflib.get_close_matches(name[:120], models, n=3, cutoff=0.0)
