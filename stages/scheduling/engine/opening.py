"""The leases that belong to a store."""

from __future__ import annotations

from stages.runs.store import RunStore, Store
from stages.scheduling.engine.lease import LeaseTable
from stages.scheduling.engine.leases import Leases


def open_leases(store: Store, owner: str | None = None) -> Leases:
    """The store's leases on behalf of `owner`, this process unless said otherwise."""
    assert isinstance(store, RunStore), "there is one kind of store"
    return LeaseTable(store.root / "leases.db", owner)
