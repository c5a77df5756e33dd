"""Traces of steps by vLLM's routes: where they are served, what they hold, and that no text is in them."""

import gzip
import json
from pathlib import Path
from typing import Any

from appliance.engine.scripted import Script

from .harness import running


def events_of(file: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
    return events


def test_steps_are_traced_between_start_and_stop(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "profiles"
    with running(tmp_path, Script(), profiler_dir=str(folder)) as server, server.http() as client:
        assert client.post("/start_profile").json() == {"profiling": True}
        ask = {"model": "scripted", "prompt": "a secret prompt", "max_tokens": 5}
        assert client.post("/v1/completions", json=ask).status_code == 200
        answer = client.post("/stop_profile").json()
        assert answer["num_steps"] == 5
        assert answer["num_steps_left_out"] == 0
        again = client.post("/stop_profile")
        assert again.status_code == 400
        assert "/start_profile" in again.json()["error"]["message"]
    file = folder / answer["file"]
    assert [path.name for path in folder.iterdir()] == [file.name]
    assert file.stat().st_mode & 0o077 == 0
    assert b"secret" not in gzip.decompress(file.read_bytes())
    events = events_of(file)
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert set(tracks.values()) == {"steps", "phases", "operators", "sequences, row 0"}
    steps = [event for event in events if event["ph"] == "X" and tracks[event["tid"]] == "steps"]
    assert [event["name"] for event in steps] == ["prefill", *["decode"] * 4]
    assert [event["args"]["tokens"] for event in steps] == [len("a secret prompt"), 1, 1, 1, 1]
    ends = [event["ts"] + event["dur"] for event in steps]
    assert all(end <= later["ts"] for end, later in zip(ends, steps[1:], strict=False))
    rows = [event for event in events if event["ph"] == "X" and tracks[event["tid"]] == "sequences, row 0"]
    assert [event["name"] for event in rows] == ["prompt", *["decode"] * 4]
    assert len({event["args"]["sequence"] for event in rows}) == 1


def test_it_is_not_served_without_a_folder(tmp_path: Path) -> None:
    with running(tmp_path, Script()) as server, server.http() as client:
        refused = client.post("/start_profile")
        assert refused.status_code == 404
        assert "observability.profiler_dir" in refused.json()["error"]["message"]


def test_a_folder_that_cannot_be_made_is_told_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with running(tmp_path, Script(), profiler_dir=str(tmp_path / "file" / "below")) as server, server.http() as client:
        client.post("/start_profile")
        refused = client.post("/stop_profile")
        assert refused.status_code == 500
        assert str(tmp_path) not in refused.text
