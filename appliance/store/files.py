"""Files of clients: rows in the database, bytes in a folder. Bounded together; each belongs to one key."""

import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance.base.errors import ApplianceError
from appliance.store.database import Database

Order = Literal["asc", "desc"]


class StoreFullError(ApplianceError):
    """There is no room for what should be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """Times are seconds of the wall clock."""

    id: str
    owner: str
    created: float
    expires: float
    size: int
    filename: str
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    max_bytes: int
    max_files: int
    lifetime_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Part of a list: what follows `after`, at most `limit`."""

    limit: int = 20
    after: str | None = None
    order: Order = "desc"


class FileStore:
    """Blocks for disk writes; call it from a thread. Paths never contain what a client said."""

    def __init__(self, database: Database, bounds: FileBounds, clock: Callable[[], float] = time.time) -> None:
        self.bounds = bounds
        self._database = database
        self._clock = clock
        self._folder = database.folder / "files"
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def path(self, file_id: str) -> Path:
        """Returns the path of a file's bytes; `file_id` is one that the store gave out."""
        return self._folder / file_id

    def room(self) -> int:
        """Bytes that may still be kept."""
        [(used,)] = self._database.read("SELECT coalesce(sum(size), 0) FROM files")
        return max(0, self.bounds.max_bytes - int(used))

    def add(self, owner: str, source: Path, filename: str, purpose: str, lifetime_s: float | None = None) -> StoredFile:
        """Takes the file at `source`, which is moved. Raises StoreFullError."""
        self.purge()
        now, size = self._clock(), source.stat().st_size
        made = StoredFile(
            id=f"file-{uuid.uuid4().hex}",
            owner=owner,
            created=now,
            expires=now + min(lifetime_s or self.bounds.lifetime_s, self.bounds.lifetime_s),
            size=size,
            filename=filename,
            purpose=purpose,
        )
        with self._database.transaction() as rows:
            count, used, number = rows.execute(
                "SELECT count(*), coalesce(sum(size), 0), coalesce(max(number), 0) FROM files"
            ).fetchone()
            if count >= self.bounds.max_files:
                raise StoreFullError(f"there are {count} files already, and {self.bounds.max_files} may be")
            if used + size > self.bounds.max_bytes:
                raise StoreFullError(f"the file has {size} bytes, and there is room for {self.bounds.max_bytes - used}")
            os.replace(source, self.path(made.id))
            rows.execute(
                "INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (made.id, owner, made.created, made.expires, size, filename, purpose, number + 1),
            )
        return made

    def get(self, owner: str, file_id: str) -> StoredFile | None:
        """Reads a file's record; None when it does not exist, has expired, or belongs to another key."""
        query = "SELECT * FROM files WHERE id = ? AND owner = ? AND expires > ?"
        found = self._database.read(query, (file_id, owner, self._clock()))
        return _file(found[0]) if found else None

    def list(self, owner: str, page: Page, purpose: str | None = None) -> tuple[list[StoredFile], bool]:
        """One page, and whether more follow."""
        rows = self._database.read(
            _LIST_UP if page.order == "asc" else _LIST_DOWN,
            (owner, self._clock(), purpose, purpose, page.after, page.after, page.limit + 1),
        )
        return [_file(row) for row in rows[: page.limit]], len(rows) > page.limit

    def delete(self, owner: str, file_id: str) -> bool:
        with self._database.transaction() as rows:
            done = rows.execute("DELETE FROM files WHERE id = ? AND owner = ?", (file_id, owner))
        if done.rowcount == 1:
            self.path(file_id).unlink(missing_ok=True)
        return done.rowcount == 1

    def purge(self) -> None:
        """Deletes what has expired."""
        with self._database.transaction() as rows:
            expired = rows.execute("DELETE FROM files WHERE expires <= ? RETURNING id", (self._clock(),)).fetchall()
        for (file_id,) in expired:
            self.path(file_id).unlink(missing_ok=True)


_LIST = (
    "SELECT * FROM files WHERE owner = ? AND expires > ? AND (? IS NULL OR purpose = ?) AND "
    "(? IS NULL OR number {sign} (SELECT number FROM files WHERE id = ?)) ORDER BY number {order} LIMIT ?"
)
_LIST_UP = _LIST.format(sign=">", order="ASC")
_LIST_DOWN = _LIST.format(sign="<", order="DESC")


def _file(row: sqlite3.Row) -> StoredFile:
    names = ("id", "owner", "created", "expires", "size", "filename", "purpose")
    return StoredFile(**{name: row[name] for name in names})
