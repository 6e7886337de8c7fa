"""The leases that belong to a store."""

from __future__ import annotations

from stages.runs.object_store import ObjectStore
from stages.runs.store import RunStore, Store
from stages.scheduling.engine.lease import LeaseTable
from stages.scheduling.engine.leases import Leases
from stages.scheduling.engine.object_leases import ObjectLeases


def open_leases(store: Store, owner: str | None = None) -> Leases:
    """The store's leases on behalf of `owner`, this process unless said otherwise."""
    if isinstance(store, ObjectStore):
        return ObjectLeases(store, owner)
    assert isinstance(store, RunStore), "there are two kinds of stores"
    return LeaseTable(store.root / "leases.db", owner)
