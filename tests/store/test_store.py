"""The store alone: bounds, ages, owners, leases, and what a second process sees."""

import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.base.errors import ApplianceError
from appliance.store.batches import LEASE_S, BatchBounds, BatchRecord, BatchStore
from appliance.store.database import DATABASE, Database
from appliance.store.files import FileBounds, FileStore, Page, StoreFullError
from appliance.store.responses import ResponseStore, StoredResponse


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def response(name: str, owner: str = "a", status: str = "completed", size: int = 10) -> StoredResponse:
    return StoredResponse(id=name, owner=owner, status=status, response=b"x" * size, items=b"[]")


def batch(name: str, owner: str = "a") -> BatchRecord:
    return BatchRecord(
        id=name, owner=owner, endpoint="/v1/completions", input_file_id="f", completion_window="24h", created_at=0,
        expires_at=99,
    )  # fmt: skip


def test_the_oldest_response_goes_first(tmp_path: Path, clock: Clock) -> None:
    store = ResponseStore(Database(tmp_path), max_count=3, max_bytes=100, clock=clock)
    for number in range(4):
        clock.now += 1
        store.put(response(str(number)))
    assert [number for number in range(4) if store.get("a", str(number))] == [1, 2, 3]
    store.put(response("large", size=80))
    assert [number for number in range(4) if store.get("a", str(number))] == [3]
    assert store.get("b", "large") is None
    assert not store.delete("b", "large")
    assert store.delete("a", "large")


def test_an_ended_response_stays_as_it_is(tmp_path: Path, clock: Clock) -> None:
    store = ResponseStore(Database(tmp_path), max_count=3, max_bytes=1000, clock=clock)
    store.put(response("r", status="in_progress"))
    clock.now += 5
    assert store.touch("a", "r")
    store.put(response("r", status="cancelled"))
    store.put(response("r", status="completed"))
    found = store.get("a", "r")
    assert found is not None
    assert (found.status, found.touched) == ("cancelled", 1005.0)
    assert not store.touch("a", "r")


def test_files_expire_and_give_their_room_back(tmp_path: Path, clock: Clock) -> None:
    bounds = FileBounds(max_bytes=100, max_files=2, lifetime_s=60.0)
    store = FileStore(Database(tmp_path / "store"), bounds, clock)

    def add(size: int, lifetime_s: float | None = None) -> str:
        source = tmp_path / "source"
        source.write_bytes(b"x" * size)
        return store.add("a", source, "name", "batch", lifetime_s).id

    first = add(60, lifetime_s=10.0)
    with pytest.raises(StoreFullError, match="room for 40"):
        add(50)
    add(40)
    assert store.room() == 0
    with pytest.raises(StoreFullError, match="2 files already"):
        add(0)
    clock.now += 11
    assert store.get("a", first) is None
    assert [each.size for each in store.list("a", Page())[0]] == [40]
    add(60)
    assert not store.path(first).exists()
    assert store.list("b", Page()) == ([], False)


def test_a_batch_is_one_processes_at_a_time(tmp_path: Path, clock: Clock) -> None:
    bounds = BatchBounds(max_batches=2, lifetime_s=60.0)
    first, second = (BatchStore(Database(tmp_path), bounds, clock) for _ in range(2))
    first.add(batch("one"))
    first.add(batch("two", owner="b"))
    with pytest.raises(StoreFullError):
        first.add(batch("three"))
    claimed = [store.claim(name) for store, name in ((first, "p"), (second, "q"), (first, "p"))]
    assert [each.id if each else None for each in claimed] == ["one", "two", None]
    assert claimed[0] is not None
    assert first.save("p", claimed[0]) == (True, False)
    assert second.cancel("a", "one") is not None
    assert second.cancel("b", "one") is None
    assert first.save("p", claimed[0]) == (True, True)
    clock.now += LEASE_S + 1
    taken = second.claim("q")
    assert taken is not None
    assert taken.id == "one"
    assert first.save("p", claimed[0]) == (False, False)
    second.release("q", "one")
    again = first.claim("p")
    assert again is not None
    assert again.id == "one"


def test_ended_batches_make_room_when_they_are_old(tmp_path: Path, clock: Clock) -> None:
    store = BatchStore(Database(tmp_path), BatchBounds(max_batches=1, lifetime_s=60.0), clock)
    store.add(batch("one"))
    claimed = store.claim("p")
    assert claimed is not None
    clock.now += 100
    with pytest.raises(StoreFullError):
        store.add(batch("two"))  # an open one is not taken away
    claimed.enter("completed", clock())
    store.save("p", claimed)
    store.add(batch("two"))
    assert store.get("a", "one") is None


def test_the_folder_is_its_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    Database(folder).close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / DATABASE).stat().st_mode) == 0o600


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    Database(tmp_path).close()
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(ApplianceError, match="another version"):
        Database(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ApplianceError, match="cannot be used"):
        Database(tmp_path / "file")
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / DATABASE).write_bytes(b"no database at all" * 100)
    with pytest.raises(ApplianceError, match="cannot be used"):
        Database(tmp_path / "garbage")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    database = Database(tmp_path)

    def fail() -> None:
        with database.transaction() as rows:
            rows.execute("INSERT INTO responses VALUES ('x', 'a', 0, 0, 'completed', 1, x'00', x'00')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert database.read("SELECT * FROM responses") == []
