"""OpenAI's Files and Batches through the official client; what they keep is bounded and each key's own."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from appliance.base.hashing import key_hash
from appliance.engine.scripted import Script
from tests.server.harness import Server, running, says, wait_until, write_plan

SCRIPT = Script(replies=[says("greet", "hello"), says("count", "1 2 3 4 5 6 7 8 9")])


def line(custom_id: str, message: str = "greet", **body: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": message}]
    asked = {"model": "scripted", "messages": messages, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": asked}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


def upload(client: openai.OpenAI, content: bytes, name: str = "in.jsonl") -> Any:
    return client.files.create(file=(name, content), purpose="batch")


def start(client: openai.OpenAI, file_id: str, **options: Any) -> Any:
    return client.batches.create(
        input_file_id=file_id, endpoint="/v1/chat/completions", completion_window="24h", **options
    )


def ended(client: openai.OpenAI, batch_id: str) -> Any:
    last = ("completed", "failed", "cancelled", "expired")
    wait_until(lambda: client.batches.retrieve(batch_id).status in last, "the batch does not end", timeout_s=30.0)
    return client.batches.retrieve(batch_id)


def lines_of(client: openai.OpenAI, file_id: str) -> dict[str, Any]:
    found = [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
    return {each["custom_id"]: each for each in found}


def test_a_file_with_a_byte_order_mark(client: openai.OpenAI) -> None:
    content = b"\xef\xbb\xbf" + jsonl(line("a"))
    made = upload(client, content)
    assert client.files.content(made.id).content == content
    batch = ended(client, start(client, made.id).id)
    assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == ("completed", 1, 0)


def test_a_file_in_utf_16_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(
        openai.BadRequestError, match="the file is UTF-16 text, and UTF-8 is expected; save it as UTF-8"
    ):
        upload(client, jsonl(line("a")).decode().encode("utf-16"))


def test_files(client: openai.OpenAI) -> None:
    content = jsonl(line("a"))
    made = upload(client, content, "../../etc/pass\u202ewd")
    assert (made.object, made.bytes, made.purpose, made.status) == ("file", len(content), "batch", "processed")
    assert made.filename == "passwd"
    assert client.files.retrieve(made.id) == made
    answer = client.files.content(made.id)
    assert answer.content == content
    assert answer.response.headers["x-content-type-options"] == "nosniff"
    assert answer.response.headers["content-disposition"].startswith("attachment")
    assert made.id in [each.id for each in client.files.list()]
    assert client.files.delete(made.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(made.id)


def test_files_are_paged(client: openai.OpenAI) -> None:
    made = [upload(client, jsonl(line(str(number)))).id for number in range(3)]
    listed = [each.id for each in client.files.list(limit=1, purpose="batch")]
    assert [each for each in listed if each in made] == made[::-1]
    upward = [each.id for each in client.files.list(limit=2, order="asc")]
    assert [each for each in upward if each in made] == made


def test_a_batch(client: openai.OpenAI) -> None:
    content = jsonl(line("a"), line("b", "count"), line("wrong", temperature=-1))
    batch = start(client, upload(client, content).id, metadata={"for": "test"})
    assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"for": "test"})
    done = ended(client, batch.id)
    assert done.status == "completed"
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 2, 1)
    assert done.usage.output_tokens > 0
    output = lines_of(client, done.output_file_id)
    assert set(output) == {"a", "b"}
    assert output["a"]["error"] is None
    assert output["a"]["response"]["status_code"] == 200
    assert output["b"]["response"]["body"]["choices"][0]["message"]["content"] == "1 2 3 4 5 6 7 8 9"
    errors = lines_of(client, done.error_file_id)
    assert errors["wrong"]["response"]["status_code"] == 400
    assert errors["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    assert batch.id in [each.id for each in client.batches.list(limit=1)]
    assert client.files.retrieve(done.output_file_id).purpose == "batch_output"


def test_a_deleted_input_does_not_end_its_batch(client: openai.OpenAI) -> None:
    source = upload(client, jsonl(*[line(str(number)) for number in range(20)]))
    batch = start(client, source.id)
    client.files.delete(source.id)
    assert ended(client, batch.id).request_counts.completed == 20


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "empty_file"), (b"{\n", "invalid_json"), (jsonl(line("a"), line("a")), "duplicate_custom_id"),
        (jsonl({**line("a"), "url": "/v1/completions"}), "mismatched_endpoint"),
        (jsonl({**line("a"), "url": "/v1/images"}), "invalid_url"),
        (jsonl({**line("a"), "method": "GET"}), "invalid_method"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_wrong_input_fails_before_it_starts(client: openai.OpenAI, content: bytes, code: str) -> None:
    done = ended(client, start(client, upload(client, content).id).id)
    assert done.status == "failed"
    assert done.errors.data[0].code == code
    assert done.output_file_id is None


def test_wrong_requests(client: openai.OpenAI, http: httpx.Client) -> None:
    body = {"input_file_id": upload(client, b"x").id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    for name, value, status in [
        ("input_file_id", "file-none", 404), ("endpoint", "/v1/embeddings", 400), ("completion_window", "1h", 400),
        ("metadata", {str(number): "x" for number in range(17)}, 400), ("no_such", 1, 400),
    ]:  # fmt: skip
        refused = http.post("/v1/batches", json={**body, name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (status, name)
    for path in ("/v1/batches/batch_none", "/v1/files/file-none", "/v1/files/file-none/content"):
        assert http.get(path).status_code == 404
    assert http.get("/v1/files/..%2f..%2fstore.sqlite3/content").status_code == 404
    file = {"file": ("x", b"x")}
    assert http.post("/v1/files", files=file).json()["error"]["param"] == "purpose"
    assert http.post("/v1/files", files=file, data={"purpose": "fine-tune"}).json()["error"]["param"] == "purpose"
    assert http.post("/v1/files", files=file, data={"purpose": "batch", "odd": "1"}).status_code == 400
    assert http.post("/v1/files", files={"other": ("x", b"x")}, data={"purpose": "batch"}).status_code == 400
    assert http.post("/v1/files", json={}).status_code == 415
    broken = {"content-type": "multipart/form-data; boundary=x"}
    for garbage in (b"", b"--x", b"\x00" * 1000, b"--x\r\ncontent-disposition: form-data\r\n\r\n--x--"):
        assert http.post("/v1/files", content=garbage, headers=broken).status_code == 400, garbage
    assert http.post("/v1/files", content=b"x", headers={"content-type": "multipart/form-data"}).status_code == 400
    for query in ("limit=0", "limit=x", "limit=99999999999", "order=up"):
        assert http.get(f"/v1/files?{query}").status_code == 400


def test_what_is_kept_is_bounded_and_each_keys_own(tmp_path: Path) -> None:
    hashes = {"a": key_hash("first-key"), "b": key_hash("second-key")}
    bounds = {"max_bytes": 2000, "max_files": 3}
    with running(tmp_path, SCRIPT, key_hashes=hashes, store=bounds) as server:
        first, second = server.openai("first-key"), server.openai("second-key")
        made = upload(first, jsonl(line("a")))
        batch = start(first, made.id)
        assert ended(first, batch.id).status == "completed"
        for call in (second.files.retrieve, second.files.delete, second.files.content):
            with pytest.raises(openai.NotFoundError):
                call(made.id)
        for call in (second.batches.retrieve, second.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(batch.id)
        with pytest.raises(openai.NotFoundError):
            start(second, made.id)
        assert list(second.files.list()) == list(second.batches.list()) == []
        with pytest.raises(openai.APIStatusError) as large:
            upload(second, b"x" * 5000)
        assert large.value.status_code == 413
        upload(second, b"x")
        with pytest.raises(openai.APIStatusError, match="files already"):
            upload(second, b"x")


def test_cancelled(tmp_path: Path) -> None:
    script = Script(step_seconds=0.02, replies=SCRIPT.replies)
    with running(tmp_path, script) as server, server.openai() as client:
        batch = start(client, upload(client, jsonl(*[line(str(number), "count") for number in range(200)])).id)
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0, "nothing is answered", 30.0)
        assert client.batches.cancel(batch.id).status == "cancelling"
        done = ended(client, batch.id)
        assert done.status == "cancelled"
        assert 0 < len(lines_of(client, done.output_file_id)) == done.request_counts.completed < 200


def test_a_killed_server_goes_on_and_answers_each_line_once(tmp_path: Path) -> None:
    script = Script(step_seconds=0.01, replies=SCRIPT.replies)
    plan = write_plan(tmp_path, script, store={"dir": str(tmp_path / "kept")})
    first = Server(plan, tmp_path)
    first.wait_for("ready")
    with first.openai() as client:
        batch = start(client, upload(client, jsonl(*[line(str(number), "count") for number in range(60)])).id)
        wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 5, "nothing is answered", 30.0)
    engine = first.engine_pid()
    first.process.kill()
    first.close()
    os.kill(engine, signal.SIGKILL)
    _give_up_lease(tmp_path / "kept" / "store.sqlite3")
    folder = tmp_path / "second"
    folder.mkdir()
    second = Server(plan, folder)
    try:
        second.wait_for("ready")
        with second.openai() as client:
            done = ended(client, batch.id)
            assert (done.status, done.request_counts.completed) == ("completed", 60)
            text = client.files.content(done.output_file_id).text
            assert sorted(int(json.loads(each)["custom_id"]) for each in text.splitlines()) == list(range(60))
    finally:
        second.close()


def _give_up_lease(database: Path) -> None:
    """As if half a minute had passed."""
    import sqlite3

    connection = sqlite3.connect(database)
    connection.execute("UPDATE batches SET touched = 0")
    connection.commit()
    connection.close()
