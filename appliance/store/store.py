"""One store: opened at its first use, closed with its server."""

import tempfile
from pathlib import Path

from appliance.plan.types import ServingPlan
from appliance.store.database import Database
from appliance.store.responses import ResponseStore


class Store:
    """The parts of what is kept for clients. Without a folder it is a temporary one, which goes with the store."""

    def __init__(self, serving: ServingPlan, folder: Path | None = None) -> None:
        """`folder`: where the plan names none."""
        self._serving = serving
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._folder = Path(serving.store_dir) if serving.store_dir else folder
        self._database: Database | None = None
        self._responses: ResponseStore | None = None

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
            serving = self._serving
            self._responses = ResponseStore(
                self.database, max_count=serving.max_responses, max_bytes=serving.max_response_bytes
            )
        return self._responses

    def close(self) -> None:
        if self._database is not None:
            self._database.close()
        if self._temporary is not None:
            self._temporary.cleanup()
