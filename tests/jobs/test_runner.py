"""A batch over a fake answerer: order, bounds, errors, and runs that go on where one stopped."""

import asyncio
import json
from pathlib import Path

import pytest

from appliance.base.errors import ApplianceError
from appliance.base.texts import MARK
from appliance.jobs.answerer import LineReply
from appliance.jobs.answering import BatchStoppedError
from appliance.jobs.output import OutputFile
from tests.jobs.work import echo, read, reply, request, run, write_input


async def last_is_first(path: str, body: bytes) -> LineReply:
    """The later a request stands, the sooner it is answered."""
    await asyncio.sleep(0.02 * (9 - json.loads(body)["place"]))
    return reply(body)


async def nobody(path: str, body: bytes) -> LineReply:
    raise AssertionError("an answered line was asked again")


@pytest.mark.parametrize("order", ["input", "completion"])
def test_every_line_is_answered_once(tmp_path: Path, order: str) -> None:
    files = write_input(tmp_path, [request(f"r{i}", place=i) for i in range(9)])
    progress = run(files, last_is_first, order=order, max_concurrency=9)
    ids = [line["custom_id"] for line in read(files.output)]
    assert sorted(ids) == [f"r{i}" for i in range(9)]
    assert (ids == sorted(ids)) == (order == "input")
    assert (progress.done, progress.failed, progress.completion_tokens) == (9, 0, 27)
    assert all(line["response"]["body"]["echo"]["place"] == int(line["custom_id"][1:]) for line in read(files.output))
    assert not files.errors.exists()


@pytest.mark.parametrize("lines", [["r0"], ["r0", "r1"]])
def test_byte_order_marks_are_no_part_of_lines(tmp_path: Path, lines: list[str]) -> None:
    """A mark may be at the beginning, and where files were joined."""
    files = write_input(tmp_path, [request(each) for each in lines])
    files.input.write_bytes(b"".join(MARK + line for line in files.input.read_bytes().splitlines(keepends=True)))
    progress = run(files, echo)
    assert (progress.done, progress.failed) == (len(lines), 0)
    assert [line["custom_id"] for line in read(files.output)] == lines


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_an_input_in_utf_16_is_refused_before_anything_is_asked(tmp_path: Path, encoding: str) -> None:
    files = write_input(tmp_path, [])
    files.input.write_bytes(request("a").encode(encoding))
    with pytest.raises(ApplianceError, match="the input is UTF-16 text, and UTF-8 is expected"):
        run(files, nobody)


def test_the_window_is_bounded(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request(f"r{i}") for i in range(50)])
    in_flight, most = 0, 0

    async def counted(path: str, body: bytes) -> LineReply:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        await asyncio.sleep(0)
        in_flight -= 1
        return reply(body)

    run(files, counted, max_concurrency=4)
    assert most == 4


def test_a_slow_first_line_holds_back_a_bounded_number(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request(f"r{i}", place=i) for i in range(100)])
    release = asyncio.Event()
    asked = 0

    async def first_is_slow(path: str, body: bytes) -> LineReply:
        nonlocal asked
        asked += 1
        if json.loads(body)["place"] == 0:
            while asked < 2 * 8:  # as many as may be held, and no more will come
                await asyncio.sleep(0)
            for _ in range(50):
                await asyncio.sleep(0)
            assert asked == 2 * 8
            release.set()
        return reply(body)

    run(files, first_is_slow, max_concurrency=2)
    assert release.is_set()
    assert [line["custom_id"] for line in read(files.output)] == [f"r{i}" for i in range(100)]


def test_errors_stay_on_their_lines(tmp_path: Path) -> None:
    lines = [request("a"), "{bad", request("a"), request("b", fail=True), "", request("c")]
    files = write_input(tmp_path, lines)

    async def some_fail(path: str, body: bytes) -> LineReply:
        return reply(body, 400 if b"fail" in body else 200)

    progress = run(files, some_fail)
    found = read(files.output)
    codes = [line["error"] and line["error"]["code"] for line in found]
    assert codes == [None, "invalid_json", "duplicate_custom_id", "request_failed", None]
    assert found[3]["response"]["status_code"] == 400
    assert found[3]["error"]["message"] == "no"
    assert read(files.errors) == found[1:4]
    assert (progress.total, progress.failed) == (5, 3)


@pytest.mark.parametrize("order", ["input", "completion"])
@pytest.mark.parametrize("cut", [0, 1, 40])
def test_a_torn_line_is_cut_off_and_run_again(tmp_path: Path, order: str, cut: int) -> None:
    files = write_input(tmp_path, [request("a"), "{bad", *(request(f"r{i}") for i in range(6))])
    run(files, echo, order=order)
    whole = files.output.read_bytes()
    lines = whole.splitlines(keepends=True)
    for kept in range(len(lines) + 1):
        torn = lines[kept][: len(lines[kept]) - 1 - cut] if kept < len(lines) else b""
        files.output.write_bytes(b"".join(lines[:kept]) + torn)
        progress = run(files, echo, order=order)
        assert progress.resumed == kept
        ids = [line["id"] for line in read(files.output)]
        assert sorted(ids) == sorted({json.loads(line)["id"] for line in lines})
        assert [line["custom_id"] for line in read(files.errors)] == [None]


def test_a_finished_run_asks_nobody(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request("a"), request("b")])
    run(files, echo)
    before = files.output.read_bytes()
    assert run(files, nobody).resumed == 2
    assert files.output.read_bytes() == before


def test_no_resume_starts_anew(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request("a")])
    run(files, echo)
    assert run(files, echo, resume=False).resumed == 0
    assert len(read(files.output)) == 1


def test_another_input_is_refused(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request("a"), request("b")])
    run(files, echo)
    write_input(tmp_path, [request("a"), request("z")])
    with pytest.raises(ApplianceError, match=r"in\.jsonl:2: not the line"):
        run(files, nobody)


def test_a_strange_output_is_refused(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request("a")])
    files.output.write_text("hello\n")
    with pytest.raises(ApplianceError, match=r"out\.jsonl:1: not a line of a batch output"):
        run(files, nobody)
    assert files.output.read_text() == "hello\n"


def test_two_runs_do_not_share_an_output(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request("a")])
    held = OutputFile(files.output, resume=True)
    try:
        with pytest.raises(ApplianceError, match="another batch run"):
            run(files, nobody)
    finally:
        held.close()


def test_a_full_engine_is_asked_again(tmp_path: Path) -> None:
    files = write_input(tmp_path, [request("a")])
    statuses = iter([429, 429, 200])

    async def full(path: str, body: bytes) -> LineReply:
        return reply(body, next(statuses))

    assert run(files, full).failed == 0


@pytest.mark.parametrize("order", ["input", "completion"])
def test_a_dead_engine_stops_the_run_and_the_next_one_goes_on(tmp_path: Path, order: str) -> None:
    files = write_input(tmp_path, [request(f"r{i}", place=i) for i in range(8)])

    async def dies(path: str, body: bytes) -> LineReply:
        return reply(body, 503 if json.loads(body)["place"] == 5 else 200)

    with pytest.raises(BatchStoppedError, match="the batch stopped: no"):
        run(files, dies, order=order, max_concurrency=2)
    written = len(read(files.output))
    assert 0 < written < 8
    assert run(files, echo, order=order).resumed == written
    assert sorted(line["custom_id"] for line in read(files.output)) == [f"r{i}" for i in range(8)]


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    files = write_input(tmp_path, [])
    files.input.unlink()
    with pytest.raises(ApplianceError, match="there is no input file"):
        run(files, nobody)
