"""The engine process over a real socket: requests, several clients, bad messages, deaths of every kind."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from appliance.engine.boot import boot
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.front import Intake
from appliance.engine.messages import (
    AbortRequest,
    BadMessage,
    BootPhase,
    EngineStats,
    ErrorKind,
    Fatal,
    FinishReason,
    Heartbeat,
    Hello,
    OutputBatch,
    Ready,
    UtilityRequest,
    UtilityResult,
)
from appliance.engine.process import EXIT_DEAD, EXIT_NOT_STARTED, ServedEngine
from appliance.engine.scripted import Reply, Script
from appliance.engine.step import StepPlan
from appliance.plan.boot import BootReport

from .client import PATIENCE_S, Client, command, engine, write_plan
from .plans import scripted_plan
from .simulator import generate

FOREVER = 200  # tokens


def stats(client: Client) -> EngineStats:
    client.send(UtilityRequest(call_id="s", method="stats"))
    return msgspec.msgpack.decode(client.wait_for(UtilityResult).value, type=EngineStats)


def test_a_request_is_answered_and_boot_is_told(tmp_path: Path) -> None:
    script = Script(replies=[Reply([7, 8], [20, 21, 22])])
    with engine(tmp_path, scripted_plan(tmp_path, script)) as (_, endpoint), Client(endpoint) as client:
        client.send(generate("hello", [5, 7, 8], 10, eos=(0,)))
        for name in ("interpreter", "load", "runner"):
            assert client.wait_for(BootPhase, lambda phase: phase.ended).name == name
        report = msgspec.msgpack.decode(client.wait_for(Ready).report, type=BootReport)
        assert {"interpreter", "load", "runner"} == set(report.seconds)
        outputs = list(client.outputs("hello"))
        assert [token for output in outputs for token in output.token_ids] == [20, 21, 22, 0]
        assert outputs[-1].finish_reason is FinishReason.STOP
        assert stats(client).num_blocks_used == 0


def test_clients_share_an_engine_and_do_not_hear_each_other(tmp_path: Path) -> None:
    with engine(tmp_path, scripted_plan(tmp_path)) as (_, endpoint), Client(endpoint) as one, Client(endpoint) as two:
        one.send(generate("same", [10], 3))
        two.send(generate("same", [100], 3))
        assert [output.token_ids for output in one.outputs("same")] == [[11], [12], [13]]
        assert [output.token_ids for output in two.outputs("same")] == [[101], [102], [103]]


def test_a_client_that_goes_takes_its_requests_along(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(step_seconds=0.01))
    with engine(tmp_path, plan) as (_, endpoint), Client(endpoint) as watcher:
        watcher.ready()
        with Client(endpoint) as client:
            client.send(generate("long", [1], FOREVER))
            next(client.outputs("long"))
            assert stats(watcher).num_running == 1
        while stats(watcher).num_running:
            watcher.wait_for(Heartbeat)
        assert stats(watcher).generation_tokens < FOREVER


def test_abort_is_confirmed_and_unknown_ids_are_ignored(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(step_seconds=0.01))
    with engine(tmp_path, plan) as (_, endpoint), Client(endpoint) as client:
        client.send(generate("long", [1], FOREVER, n=2))
        next(client.outputs("long"))
        client.send(AbortRequest(["unknown", "long"]))
        ended = client.wait_for(OutputBatch, lambda batch: any(output.finish_reason for output in batch.outputs))
        assert [(output.index, output.finish_reason) for output in ended.outputs] == [
            (0, FinishReason.ABORT),
            (1, FinishReason.ABORT),
        ]
        assert stats(client).num_blocks_used == 0


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ((b"\xff\x00garbage",), "unreadable"),
        ((b"",), "unreadable"),
        ((b"one", b"two"), "2 frames"),
        ((msgspec.msgpack.encode({"type": "generate", "request_id": 5}),), "request_id"),
        ((msgspec.msgpack.encode({"type": "dance"}),), "dance"),
        ((msgspec.msgpack.encode({"type": "abort", "request_ids": ["a"] * 2 + [None]}),), "request_ids"),
    ],
)
def test_bad_messages_harm_nobody(engine_endpoint: str, frames: tuple[bytes, ...], words: str) -> None:
    with Client(engine_endpoint) as client:
        client.send_frames(*frames)
        assert words in client.wait_for(BadMessage).error
        client.send(generate("after", [1], 2))
        assert len(list(client.outputs("after"))) == 2


@pytest.fixture(scope="module")
def engine_endpoint(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("engine")
    with engine(folder, scripted_plan(folder)) as (_, endpoint):
        yield endpoint


def test_bad_requests_fail_alone_and_name_the_field(engine_endpoint: str) -> None:
    bad = {
        "prompt": generate("prompt", []),
        "temperature": generate("temperature", [1], temperature=float("nan")),
        "n": generate("n", [1], n=10**9),
        "priority": generate("priority", [1], priority=1),
        "allowed_token_ids": generate("allowed_token_ids", [1], allowed_token_ids=(100_000,)),
    }
    with Client(engine_endpoint) as client:
        for field, request in bad.items():
            client.send(request)
            output = next(client.outputs(field))
            assert output.error_field == field
            assert output.error_kind is ErrorKind.INVALID


def test_a_crash_fails_all_requests_then_exits(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(crash_at_step=5))
    with engine(tmp_path, plan) as (process, endpoint), Client(endpoint) as client:
        client.send(generate("a", [1], FOREVER, n=2))
        failed = {}
        while len(failed) < 2:
            for output in client.wait_for(OutputBatch).outputs:
                if output.finish_reason is not None:
                    failed[output.index] = output
        assert all(output.error_kind is ErrorKind.INTERNAL for output in failed.values())
        assert all("scripted crash in step 5" in str(output.error) for output in failed.values())
        assert "scripted crash" in client.wait_for(Fatal).error
        assert process.wait(10) == EXIT_DEAD


def test_who_connects_after_the_failure_is_told_of_it(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path)
    (tmp_path / "script.json").write_text("not a script")
    with engine(tmp_path, plan) as (process, endpoint):
        assert process.stderr is not None
        while b"could not start" not in process.stderr.readline():
            assert process.poll() is None
        with Client(endpoint) as client:
            client.send(Hello())
            assert "JSON is malformed" in client.wait_for(Fatal).error
            assert process.wait(10) == EXIT_NOT_STARTED


def test_a_hung_step_shows_in_heartbeats(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(hang_at_step=2))
    with engine(tmp_path, plan) as (_, endpoint), Client(endpoint) as client:
        client.ready()
        assert client.wait_for(Heartbeat).step_seconds == 0.0
        client.send(generate("stuck", [1], FOREVER))
        first = client.wait_for(Heartbeat, lambda beat: beat.step == 2 and beat.step_seconds > 0.1)
        later = client.wait_for(Heartbeat, lambda beat: beat.step_seconds > first.step_seconds + 0.1)
        assert later.step == 2


def test_a_loop_that_hangs_between_steps_shows_in_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hang, schedule = threading.Event(), Scheduler.schedule

    def hung(self: Scheduler, *, goes_on: bool = False) -> StepPlan | None:
        assert hang.wait(PATIENCE_S)
        return schedule(self, goes_on=goes_on)

    monkeypatch.setattr(Scheduler, "schedule", hung)
    endpoint = f"ipc://{tmp_path}/engine.sock"
    served = ServedEngine(scripted_plan(tmp_path), endpoint, None, heartbeat_s=0.05)
    thread = threading.Thread(target=served.run)
    thread.start()
    with Client(endpoint) as client:
        client.ready()
        assert client.wait_for(Heartbeat).step_seconds == 0.0
        client.send(generate("stuck", [1], 2))
        first = client.wait_for(Heartbeat, lambda beat: beat.step_seconds > 0.1)
        assert client.wait_for(Heartbeat, lambda beat: beat.step_seconds > first.step_seconds + 0.1).step == 0
        hang.set()
        assert list(client.outputs("stuck"))
        assert client.wait_for(Heartbeat, lambda beat: beat.step_seconds == 0.0)
        client.send(UtilityRequest(call_id="end", method="shutdown"))
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_terminate_drains_then_exits_cleanly(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(step_seconds=0.01))
    with engine(tmp_path, plan) as (process, endpoint), Client(endpoint) as client:
        client.send(generate("open", [1], 20))
        outputs = client.outputs("open")
        tokens = next(outputs).token_ids
        process.send_signal(signal.SIGTERM)
        for output in outputs:
            tokens = tokens + output.token_ids
        assert len(tokens) == 20
        assert process.wait(10) == 0


def test_a_second_terminate_ends_at_once(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(step_seconds=0.01), shutdown_timeout_s=1000.0)
    with engine(tmp_path, plan) as (process, endpoint), Client(endpoint) as client:
        client.send(generate("open", [1], FOREVER))
        next(client.outputs("open"))
        process.send_signal(signal.SIGTERM)
        client.send(generate("late", [1]))
        late = next(output for output in client.outputs("late"))
        while late.error_kind is not ErrorKind.UNAVAILABLE:  # it came before the signal
            list(client.outputs("late"))
            client.send(generate("late", [1]))
            late = next(output for output in client.outputs("late"))
        process.send_signal(signal.SIGTERM)
        last = list(client.outputs("open"))[-1]
        assert last.error_kind is ErrorKind.UNAVAILABLE
        assert process.wait(10) == 0


def test_terminate_during_the_start(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, Script(load_seconds=1000.0))
    with engine(tmp_path, plan) as (process, endpoint), Client(endpoint) as client:
        client.send(Hello())
        client.wait_for(BootPhase, lambda phase: phase.name == "load")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_a_crowd_with_aborts_leaves_an_idle_engine(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, num_blocks=40, max_num_seqs=6)
    with engine(tmp_path, plan) as (_, endpoint), Client(endpoint) as one, Client(endpoint) as two:
        for number in range(60):
            for client in (one, two):
                client.send(generate(f"r{number}", range(1, 20 + number), 30, n=1 + number % 2))
                if number % 3 == 0:
                    client.send(AbortRequest([f"r{number - number % 4}"]))
        for client in (one, two):
            ended: set[tuple[str, int]] = set()
            while len(ended) < 90:
                for output in client.wait_for(OutputBatch).outputs:
                    if output.finish_reason is not None:
                        assert output.error is None
                        ended.add((output.request_id, output.index))
        last = stats(one)
        assert (last.num_running, last.num_waiting, last.num_blocks_used) == (0, 0, 0)


def test_an_idle_engine_makes_its_reserve_resident(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, num_blocks=64, prefault_blocks=40)
    with engine(tmp_path, plan) as (_, endpoint), Client(endpoint) as client:
        client.ready()
        deadline = time.monotonic() + PATIENCE_S
        while (found := stats(client)).num_blocks_touched < 40:
            assert time.monotonic() < deadline, f"{found.num_blocks_touched} blocks are resident"
        assert (found.num_blocks_touched, found.num_blocks_used, found.num_steps) == (40, 0, 0)
        client.send(generate("r", [1] * 40, 2))
        assert len(list(client.outputs("r"))) == 2
        while (found := stats(client)).num_blocks_touched < 43:
            assert time.monotonic() < deadline, f"{found.num_blocks_touched} blocks are resident"


class NeverWaits(queue.SimpleQueue[Intake]):
    def get(self, block: bool = True, timeout: float | None = None) -> Intake:
        if block and self.empty():
            raise TimeoutError("the loop waits for a message")
        return super().get(block=False)


def test_a_moment_is_used_only_where_nothing_else_is_to_be_done(tmp_path: Path) -> None:
    plan = scripted_plan(tmp_path, prefault_blocks=3)
    loop = boot(plan, lambda phase: None)
    pool = loop._scheduler.kv.pool
    process = ServedEngine(plan, f"ipc://{tmp_path}/engine.sock", None, 0.05)
    process._intake = NeverWaits()
    process._front.start()
    try:
        process._intake.put((b"c", generate("r", [1], 5)))
        process._take_in(loop)
        assert (loop.has_work, pool.num_touched) == (True, 0), "a message that waits comes first"
        while loop.has_work:
            process._take_in(loop)
            loop.step()
        assert pool.num_touched == 1, "so does work; the request took a block"
        for resident in (2, 3):
            process._take_in(loop)
            assert pool.num_touched == resident, "one block, then messages are looked at"
        loop.stopped = True
        process._take_in(loop)
        assert pool.num_touched == 3, "an engine that ends needs no memory"
        loop.stopped = False
        process._take_in(loop)
        with pytest.raises(TimeoutError, match="the loop waits"):
            process._take_in(loop)
        assert pool.num_touched == 4, "the reserve beside the block that was taken"
    finally:
        process._front.stop()


def test_drain_and_shutdown_calls(tmp_path: Path) -> None:
    with engine(tmp_path, scripted_plan(tmp_path)) as (process, endpoint), Client(endpoint) as client:
        client.send(generate("open", [1], 20))
        client.send(UtilityRequest(call_id="d", method="drain"))
        assert len(list(client.outputs("open"))) == 20
        assert client.wait_for(UtilityResult).call_id == "d"
        client.send(UtilityRequest(call_id="x", method="shutdown"))
        assert client.wait_for(UtilityResult).call_id == "x"
        assert process.wait(10) == 0


def test_the_engine_dies_with_its_parent(tmp_path: Path) -> None:
    """kill -9 of the process that holds the pipe. `alive` is a pipe that only the engine holds open."""
    endpoint = f"ipc://{tmp_path}/engine.sock"
    plan = write_plan(tmp_path, scripted_plan(tmp_path, Script(hang_at_step=1)))
    alive_reader, alive_writer = os.pipe()
    parent_source = (
        "import os, subprocess, sys, time\n"
        "alive = int(sys.argv[1]); reader, writer = os.pipe()\n"
        "subprocess.Popen([*sys.argv[2:], '--parent-fd', str(reader)], pass_fds=(reader, alive))\n"
        "os.close(alive); os.close(reader)\n"
        "while True: time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_source, str(alive_writer), *command(plan, endpoint)], pass_fds=(alive_writer,)
    )
    os.close(alive_writer)
    with Client(endpoint) as client:
        client.ready()
        client.send(generate("stuck", [1]))
        client.wait_for(Heartbeat, lambda beat: beat.step_seconds > 0)
        parent.kill()
        parent.wait()
        assert os.read(alive_reader, 1) == b"", "the engine outlived its parent"
    os.close(alive_reader)
    assert not (tmp_path / "engine.sock").exists()


def test_a_plan_that_cannot_be_read_or_started(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/engine.sock"
    missing = subprocess.run(command(tmp_path / "none.json", endpoint), capture_output=True, text=True, check=False)
    assert missing.returncode == EXIT_NOT_STARTED
    assert "none.json" in missing.stderr
    assert "Traceback" not in missing.stderr
    plan = scripted_plan(tmp_path)
    (tmp_path / "script.json").unlink()
    broken = subprocess.run(command(write_plan(tmp_path, plan), endpoint), capture_output=True, text=True, check=False)
    assert broken.returncode == EXIT_NOT_STARTED
    assert "script.json" in broken.stderr
    assert "Traceback" not in broken.stderr
