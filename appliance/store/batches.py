"""Batches of clients: what is asked, how far it is, and which process works on it."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from appliance.store.database import Database
from appliance.store.files import Page, StoreFullError

OPEN = ("validating", "in_progress", "finalizing", "cancelling")
LEASE_S = 30.0  # without a sign of life: another process may take the batch over


class BatchRecord(msgspec.Struct, kw_only=True):
    """A batch as clients see it, and its owner. Times are whole seconds of the wall clock."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: str = "validating"
    output_lifetime_s: float | None = None
    metadata: dict[str, str] | None = None
    model: str | None = None
    errors: list[dict[str, str | int | None]] = []
    output_file_id: str | None = None
    error_file_id: str | None = None
    times: dict[str, int] = {}  # "in_progress_at" and the like
    total: int = 0
    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def enter(self, status: str, now: float) -> None:
        self.status = status
        self.times[f"{status}_at"] = int(now)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchBounds:
    max_batches: int
    lifetime_s: float


class BatchStore:
    """Blocks for the time of a small write; call it from a thread."""

    def __init__(self, database: Database, bounds: BatchBounds, clock: Callable[[], float] = time.time) -> None:
        self.clock = clock
        self._database = database
        self._bounds = bounds

    def add(self, batch: BatchRecord) -> None:
        """Raises StoreFullError."""
        now = self.clock()
        with self._database.transaction() as rows:
            rows.execute("DELETE FROM batches WHERE expires <= ? AND status NOT IN (?, ?, ?, ?)", (now, *OPEN))
            count, number = rows.execute("SELECT count(*), coalesce(max(number), 0) FROM batches").fetchone()
            if count >= self._bounds.max_batches:
                raise StoreFullError(f"there are {count} batches already, and {self._bounds.max_batches} may be")
            rows.execute(
                "INSERT INTO batches (id, owner, created, expires, number, status, touched, batch) "
                "VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
                (batch.id, batch.owner, now, now + self._bounds.lifetime_s, number + 1, batch.status, _encoded(batch)),
            )

    def get(self, owner: str, batch_id: str) -> BatchRecord | None:
        """Reads a batch; None when it does not exist, or belongs to another key."""
        found = self._database.read("SELECT * FROM batches WHERE id = ? AND owner = ?", (batch_id, owner))
        return _batch(found[0]) if found else None

    def list(self, owner: str, page: Page) -> tuple[list[BatchRecord], bool]:
        """One page, newest first, and whether more follow."""
        rows = self._database.read(
            "SELECT * FROM batches WHERE owner = ? AND "
            "(? IS NULL OR number < (SELECT number FROM batches WHERE id = ?)) ORDER BY number DESC LIMIT ?",
            (owner, page.after, page.after, page.limit + 1),
        )
        return [_batch(row) for row in rows[: page.limit]], len(rows) > page.limit

    def cancel(self, owner: str, batch_id: str) -> BatchRecord | None:
        """Asks the worker of a batch to end; an ended batch stays as it is. None when it does not exist."""
        with self._database.transaction() as rows:
            rows.execute(
                "UPDATE batches SET cancelling = 1 WHERE id = ? AND owner = ? AND status IN (?, ?, ?, ?)",
                (batch_id, owner, *OPEN),
            )
        return self.get(owner, batch_id)

    def claim(self, runner: str) -> BatchRecord | None:
        """Finds the oldest open batch without a worker."""
        now = self.clock()
        with self._database.transaction() as rows:
            found = rows.execute(
                "SELECT * FROM batches WHERE status IN (?, ?, ?, ?) AND touched < ? ORDER BY number LIMIT 1",
                (*OPEN, now - LEASE_S),
            ).fetchone()
            if found is None:
                return None
            rows.execute("UPDATE batches SET runner = ?, touched = ? WHERE id = ?", (runner, now, found["id"]))
            return _batch(found)

    def save(self, runner: str, batch: BatchRecord) -> "tuple[bool, bool]":
        """Writes how far it is and extends the lease: whether it is still this runner's, and is to be cancelled."""
        with self._database.transaction() as rows:
            done = rows.execute(
                "UPDATE batches SET touched = ?, status = ?, batch = ? WHERE id = ? AND runner = ? "
                "RETURNING cancelling",
                (self.clock(), batch.status, _encoded(batch), batch.id, runner),
            ).fetchone()
            return done is not None, done is not None and bool(done[0])

    def release(self, runner: str, batch_id: str) -> None:
        """Gives an unfinished batch up, so that the next process need not wait."""
        with self._database.transaction() as rows:
            rows.execute("UPDATE batches SET touched = 0 WHERE id = ? AND runner = ?", (batch_id, runner))


def _encoded(batch: BatchRecord) -> bytes:
    return msgspec.json.encode(batch)


def _batch(row: sqlite3.Row) -> BatchRecord:
    batch = msgspec.json.decode(row["batch"], type=BatchRecord)
    if row["cancelling"] and batch.status in OPEN:
        batch.status = "cancelling"
    return batch
