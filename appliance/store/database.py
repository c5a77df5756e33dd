"""The SQLite file of a store. Several server processes may have it open at once."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.base.errors import ApplianceError

DATABASE = "store.sqlite3"
_VERSION = 1
_BUSY_S = 10.0
_SCHEMA = """
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, touched REAL NOT NULL, status TEXT NOT NULL,
    size INTEGER NOT NULL, response BLOB NOT NULL, items BLOB NOT NULL
);
CREATE INDEX responses_by_age ON responses (created);
CREATE TABLE files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL, size INTEGER NOT NULL,
    filename TEXT NOT NULL, purpose TEXT NOT NULL, number INTEGER NOT NULL
);
CREATE INDEX files_by_number ON files (number);
CREATE TABLE batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL, number INTEGER NOT NULL,
    status TEXT NOT NULL, cancelling INTEGER NOT NULL DEFAULT 0, touched REAL NOT NULL, runner TEXT, batch BLOB NOT NULL
);
CREATE INDEX batches_by_number ON batches (number);
"""


class Database:
    """One connection, used by one thread at a time. What a kill tears is rolled back at the next opening."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, readable by its owner alone. Raises ApplianceError when it cannot be used."""
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._connection = _opened(folder / DATABASE)
        except (OSError, sqlite3.Error) as error:
            raise ApplianceError(f"the store {folder} cannot be used: {error}") from error
        self._lock = threading.Lock()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Writes of the block are kept together, or not at all. Raises sqlite3.Error."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def read(self, query: str, values: tuple[object, ...] = ()) -> list[sqlite3.Row]:
        """`query` is a constant of this package; what varies goes into `values`."""
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _opened(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN IMMEDIATE")  # of several processes that start together, one makes the tables
    [(version,)] = connection.execute("PRAGMA user_version").fetchall()
    if version == 0:
        for statement in _SCHEMA.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")
    if version not in (0, _VERSION):
        connection.close()
        raise OSError(f"it was made by another version ({version}, not {_VERSION})")
    return connection
