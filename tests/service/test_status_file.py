"""The status file of a server whose disk is full for a while."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.service.status_file import MAX_WAITING_BYTES, StatusFile


@contextmanager
def files_end_at(num_bytes: int) -> Iterator[None]:
    """The kernel takes no byte behind this place of any file; a write across it is cut."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_what_a_full_disk_did_not_take_is_written_later(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "status.jsonl")
    status.write("process", pid=1)
    with files_end_at((tmp_path / "status.jsonl").stat().st_size + 20):
        for number in range(3):
            status.write("state", state=str(number))
    assert not (tmp_path / "status.jsonl").read_bytes().endswith(b"\n")
    status.write("ready", url="u")
    status.close()
    events = [json.loads(line) for line in (tmp_path / "status.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["process", "state", "state", "state", "ready"]
    assert [event["state"] for event in events[1:4]] == ["0", "1", "2"]


def test_what_waits_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "status.jsonl"
    status = StatusFile(path)
    with files_end_at(0):
        for number in range(100):
            status.write("state", number=number, reason="x" * (MAX_WAITING_BYTES // 10))
    status.close()
    assert path.stat().st_size <= MAX_WAITING_BYTES
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == list(range(9))


def test_a_disk_that_stays_full_ends_nothing() -> None:
    status = StatusFile(Path("/dev/full"))
    for name in ("state", "ready"):
        status.write(name)
    status.close()
