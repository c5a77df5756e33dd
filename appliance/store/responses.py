"""Stored responses: bounded in number and bytes, the oldest goes first; each belongs to the key that made it."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from appliance.store.database import Database

UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """response: the response object as JSON. items: what it answers, a JSON list of input items, oldest first.

    touched: when its worker last reported, in seconds of the wall clock.
    """

    id: str
    owner: str
    status: str
    response: bytes
    items: bytes
    touched: float = 0.0

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items)


class ResponseStore:
    """Blocks for the time of a small write; call it from a thread."""

    def __init__(
        self, database: Database, *, max_count: int, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self._database = database
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._clock = clock

    def put(self, stored: StoredResponse) -> None:
        """Keeps it, in place of one with its id; what is then too much goes, oldest first."""
        now = self._clock()
        row = (stored.id, stored.owner, now, now, stored.status, stored.size, stored.response, stored.items)
        with self._database.transaction() as rows:
            rows.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
                "touched = excluded.touched, status = excluded.status, size = excluded.size, "
                "response = excluded.response, items = excluded.items WHERE status IN ('queued', 'in_progress')",
                row,
            )
            count, size = rows.execute("SELECT count(*), coalesce(sum(size), 0) FROM responses").fetchone()
            while count > self._max_count or (size > self._max_bytes and count):
                oldest = rows.execute("SELECT id, size FROM responses ORDER BY created, rowid LIMIT 1").fetchone()
                rows.execute("DELETE FROM responses WHERE id = ?", (oldest["id"],))
                count, size = count - 1, size - oldest["size"]

    def get(self, owner: str, response_id: str) -> StoredResponse | None:
        """Reads a response; None when it does not exist, or belongs to another key."""
        found = self._database.read("SELECT * FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
        if not found:
            return None
        row = found[0]
        return StoredResponse(
            id=row["id"],
            owner=row["owner"],
            status=row["status"],
            response=row["response"],
            items=row["items"],
            touched=row["touched"],
        )

    def touch(self, owner: str, response_id: str) -> bool:
        """Says that it is still worked on. False when it was ended or deleted meanwhile."""
        with self._database.transaction() as rows:
            done = rows.execute(
                "UPDATE responses SET touched = ? WHERE id = ? AND owner = ? AND status IN ('queued', 'in_progress')",
                (self._clock(), response_id, owner),
            )
            return done.rowcount == 1

    def delete(self, owner: str, response_id: str) -> bool:
        with self._database.transaction() as rows:
            done = rows.execute("DELETE FROM responses WHERE id = ? AND owner = ?", (response_id, owner))
            return done.rowcount == 1
