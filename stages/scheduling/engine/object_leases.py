"""Leases of an object store: one record a run, changed by compare-and-swap alone (`stages.runs.object_store`).

No clock of two machines is compared.  An owner changes its records every few seconds; whoever wants a run takes it over
after having seen its record unchanged for `EXPIRY_SECONDS` of its own monotonic clock, or at once if the owner is a
dead process of the same machine.  Time in which the store was away doesn't count: it took no owner's change.  The runs
of a group are claimed in order of their keys, so that of two that want the same one has them all.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

from stages.runs.object_store import ObjectStore, Record, StoreFault, digests_of, next_token
from stages.runs.store import RunStore, Store
from stages.scheduling.engine.lease import LeaseTable
from stages.scheduling.engine.leases import (
    EXPIRY_SECONDS,
    HEARTBEAT_SECONDS,
    Attempt,
    End,
    Holder,
    Lease,
    LeaseLost,
    Leases,
    heartbeat,
    is_gone,
    process_identity,
)

_MOST_ATTEMPTS = 100
"""That a record keeps; earlier ones go."""


class ObjectLeases:
    """Leases in `store` on behalf of one owner (this process unless said otherwise).

    `clock` tells the time of day, for people; `monotonic` decides.
    """

    poll_seconds = 2.0

    def __init__(
        self,
        store: ObjectStore,
        owner: str | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.owner = store, owner or process_identity(os.getpid())
        self._clock, self._monotonic = clock, monotonic
        # by run key: an e-tag, since when it is that, and how many answers had come late by then
        self._watched: dict[str, tuple[str | None, float, int]] = {}
        self._held: dict[str, tuple[Record, str]] = {}  # by run key: our record as we wrote it, and its e-tag
        self._lock = threading.RLock()  # the heartbeat changes records, too

    def claim(self, *run_keys: str) -> Lease | None:
        """The lease if all runs are free or their owners gone; None if one is in training."""
        taken: list[tuple[str, int]] = []
        for run_key in sorted(run_keys):
            token = self._take(run_key)
            if token is None:
                lease = Lease(tuple(taken))
                self.close(lease, None)
                self.release(lease)
                return None
            taken.append((run_key, token))
        order = dict(taken)
        return Lease(tuple((run_key, order[run_key]) for run_key in run_keys))

    def _take(self, run_key: str) -> int | None:
        """The token of a run that is now ours; None if it is somebody else's."""
        record, tag = self.store.read(run_key)
        if record.is_published:
            self.store.mend(run_key, record)
        attempts, now = list(record.attempts), self._clock()
        if record.owner is not None:
            reason = self._why_gone(run_key, record.owner, tag)
            if reason is None:
                return None
            attempts = [
                one if one["end"] else {**one, "end": "lost", "ended": now, "reason": reason} for one in attempts
            ]
        token = next_token(record)
        if not record.is_published:
            attempts.append(asdict(Attempt(run_key=run_key, token=token, owner=self.owner, began=now)))
        mine = replace(
            record,
            token=token,
            owner=self.owner,
            beat=0,
            since=now,
            files=record.files if record.is_published else {},
            attempts=tuple(attempts[-_MOST_ATTEMPTS:]),
        )
        new = self.store.write(run_key, mine, tag)
        if new is None:
            return None
        self._watched.pop(run_key, None)
        with self._lock:
            self._held[run_key] = mine, new
        return token

    def _why_gone(self, run_key: str, owner: str, tag: str | None) -> str | None:
        """Why a run may be taken over from `owner`; None if it may not, or not yet."""
        if is_gone(owner):
            return "its process is gone"
        now, late = self._monotonic(), self.store.bucket.late_answers
        seen, since, late_before = self._watched.get(run_key, (None, now, late))
        if seen != tag or late != late_before:  # the store was away, from the owner, too
            since = now
        self._watched[run_key] = tag, since, late
        return f"was not heard of for {now - since:.0f} s" if now - since >= EXPIRY_SECONDS else None

    def holder(self, *run_keys: str) -> Holder | None:
        """The holder of the first of these runs that has one; None if all are free."""
        for run_key in run_keys:
            record, _ = self.store.read(run_key)
            if record.owner is not None:
                return Holder(record.owner, record.since)
        return None

    def attempts(self, run_key: str) -> list[Attempt]:
        """Attempts to train a run, the earliest first."""
        record, _ = self.store.read(run_key)
        return [Attempt(**one) for one in record.attempts]

    def publish(self, lease: Lease, run_key: str, files: Mapping[str, bytes]) -> Path:
        """Publish an outcome as the holder of the newest token, and close the attempt.

        Raises:
            LeaseLost: somebody has taken over the run.
        """
        token = dict(lease.tokens)[run_key]
        digests = digests_of(files)
        # named before they are written, so that nobody takes them for leftovers
        record = self._change(run_key, token, lambda mine: mine if mine.is_published else replace(mine, files=digests))
        if not record.is_published:
            self.store.upload(files)
            record = self._change(
                run_key, token, lambda mine: self._ended(replace(mine, is_published=True), "published")
            )
        return self.store.finish(run_key, record, files)

    def close(self, lease: Lease, end: End | None, reason: str = "", run_keys: Collection[str] | None = None) -> None:
        """Note how the lease's open attempts (those of `run_keys`) ended; None: nothing was tried, forget them."""
        for run_key, token in lease.tokens:
            if run_keys is None or run_key in run_keys:
                try:
                    self._change(run_key, token, lambda mine: self._ended(mine, end, reason))
                except LeaseLost:
                    continue  # whoever took it over has noted it

    def release(self, lease: Lease) -> None:
        """Give the runs back; the tokens stay, so that they only grow."""
        for run_key, token in lease.tokens:
            try:
                self._change(run_key, token, lambda mine: self._ended(replace(mine, owner=None), "stopped"))
            except LeaseLost:
                continue
            finally:
                with self._lock:
                    self._held.pop(run_key, None)

    def _ended(self, record: Record, end: End | None, reason: str = "") -> Record:
        now = self._clock()
        is_open = [one["token"] == record.token and one["end"] is None for one in record.attempts]
        if end is None:
            kept = [one for one, ours in zip(record.attempts, is_open, strict=True) if not ours]
        else:
            closed = {"end": end, "ended": now, "reason": reason}
            kept = [{**one, **closed} if ours else one for one, ours in zip(record.attempts, is_open, strict=True)]
        return replace(record, attempts=tuple(kept))

    def _change(self, run_key: str, token: int, change: Callable[[Record], Record]) -> Record:
        """Change our record, and return it as it is then.

        Raises:
            LeaseLost: it is no longer ours.
        """
        with self._lock:
            mine, tag = self._held.get(run_key, (None, ""))
            while mine is not None and mine.token == token:
                new = replace(change(mine), beat=mine.beat + 1)
                if (written := self.store.write(run_key, new, tag)) is not None:
                    self._held[run_key] = new, written
                    return new
                found, now = self.store.read(run_key)  # a change of ours whose answer was lost is ours, too
                if now is None or (found.token, found.owner) != (token, mine.owner):
                    break
                mine, tag = found, now
        raise LeaseLost(f"run {run_key[:12]} was taken over while it trained; its outcome is dropped")

    def _renew(self, lease: Lease) -> bool:
        """False if a run of the lease was taken over."""
        try:
            for run_key, token in lease.tokens:
                self._change(run_key, token, lambda mine: mine)
        except LeaseLost:
            return False
        return True

    def kept_alive(self, lease: Lease) -> AbstractContextManager[threading.Event]:
        """Renew the records for as long as the block lasts, then release the lease: as `Leases` says."""
        return heartbeat(
            lease,
            renew=lambda: self._renew(lease),
            release=lambda: self.release(lease),
            faults=(StoreFault,),
            seconds=HEARTBEAT_SECONDS,
        )


def open_leases(store: Store, owner: str | None = None) -> Leases:
    """The store's leases on behalf of `owner`, this process unless said otherwise."""
    if isinstance(store, ObjectStore):
        return ObjectLeases(store, owner)
    assert isinstance(store, RunStore), "there are two kinds of stores"
    return LeaseTable(store.root / "leases.db", owner)
