"""One store: opened at its first use, closed with its server."""

import shutil
import tempfile
from pathlib import Path

from appliance.plan.serving_types import StorePlan
from appliance.store.batches import BatchBounds, BatchStore
from appliance.store.database import DATABASE, Database
from appliance.store.files import FileBounds, FileStore
from appliance.store.responses import ResponseStore


class Store:
    """The parts of the store for clients. Without a folder it uses a temporary one, which is removed with the store."""

    def __init__(self, plan: StorePlan, folder: Path | None = None) -> None:
        """`folder`: where the plan names none."""
        self._plan = plan
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path(plan.dir) if plan.dir else folder
        self._database: Database | None = None
        self._responses: ResponseStore | None = None
        self._files: FileStore | None = None
        self._batches: BatchStore | None = None

    @property
    def is_begun(self) -> bool:
        """The store holds something, maybe from an earlier server."""
        return self._database is not None or (self._folder is not None and (self._folder / DATABASE).exists())

    @property
    def database(self) -> Database:
        """Raises ApplianceError when the folder cannot be used."""
        if self._database is None:
            if self._folder is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="appliance-store-")
                self._folder = Path(self._temporary.name)
            self._database = Database(self._folder)
        return self._database

    @property
    def responses(self) -> ResponseStore:
        if self._responses is None:
            plan = self._plan
            self._responses = ResponseStore(
                self.database, max_count=plan.max_responses, max_bytes=plan.max_response_bytes
            )
        return self._responses

    @property
    def files(self) -> FileStore:
        if self._files is None:
            plan = self._plan
            bounds = FileBounds(
                max_bytes=plan.max_bytes,
                max_files=plan.max_files,
                lifetime_s=plan.lifetime_s,
            )
            self._files = FileStore(self.database, bounds)
        return self._files

    @property
    def batches(self) -> BatchStore:
        if self._batches is None:
            plan = self._plan
            bounds = BatchBounds(max_batches=plan.max_batches, lifetime_s=plan.lifetime_s)
            self._batches = BatchStore(self.database, bounds)
        return self._batches

    def work_folder(self, batch_id: str) -> Path:
        """Where a batch is run; `batch_id` is one that the server made."""
        return self.database.folder / "work" / batch_id

    def remove_work(self, batch_id: str) -> None:
        shutil.rmtree(self.work_folder(batch_id), ignore_errors=True)

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        if self._temporary is not None:
            self._temporary.cleanup()
