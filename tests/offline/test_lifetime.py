"""What an import costs, and what is left after an engine was closed."""

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import appliance
from appliance import LLM, SamplingParams
from appliance.offline.errors import ClosedError
from tests.offline.conftest import ARGUMENTS
from tests.server.harness import wait_until

MOST_IMPORT_S = 0.05
GREEDY = SamplingParams(temperature=0.0, max_tokens=4)

TIMED = """
import time
begun = time.process_time()
import appliance
print(time.process_time() - begun)
"""
MODULES = """
import json, sys
from appliance import LLM, AsyncLLM, SamplingParams, PoolingParams, LoRARequest
print(json.dumps(sorted(sys.modules)))
"""
ANSWERED = """
import json, sys
from appliance import LLM
if __name__ == "__main__":
    llm = LLM(sys.argv[1], max_model_len=256, num_gpu_blocks_override=64)
    print(json.dumps([llm.generate("abc")[0].outputs[0].text, sorted(sys.modules)]))
"""
REPLICAS = """
import sys
from appliance import LLM
llm = LLM(sys.argv[1], max_model_len=256, num_gpu_blocks_override=64, data_parallel_size=2)
print(len(llm.generate(["abc", "def"] * 4)))
"""


def python(code: str, *arguments: str, timeout_s: float = 60.0) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_an_import_costs_next_to_nothing() -> None:
    assert min(float(python(TIMED)) for _ in range(3)) < MOST_IMPORT_S


def test_names_are_there_without_an_engine() -> None:
    modules = set(json.loads(python(MODULES)))
    assert (
        modules & {"torch", "transformers", "fastapi", "uvicorn", "appliance.server", "appliance.kernels.native"}
        == set()
    )


def test_every_name_of_the_package_is_there() -> None:
    for name in appliance.__all__:
        assert getattr(appliance, name) is not None
    with pytest.raises(AttributeError, match="'appliance' has no attribute 'Llm'"):
        appliance.Llm  # noqa: B018


def test_answering_on_a_cpu_needs_no_torch_and_a_process_that_never_closes_ends(model: Path) -> None:
    text, modules = json.loads(python(ANSWERED, str(model)))
    assert text
    assert {"torch", "transformers"} & set(modules) == set()


def test_replicas_answer_and_end_with_the_process(model: Path) -> None:
    assert python(REPLICAS, str(model)) == "8"


def test_closing_frees_everything(model: Path) -> None:
    gc.collect()  # what other tests left is not freed between the two counts
    before = threads_and_files()
    for _ in range(3):
        llm = LLM(str(model), **ARGUMENTS)
        assert threads_and_files()[0] > before[0]
        llm.generate("abc", GREEDY)
        llm.close()
        llm.close()
    wait_until(lambda: no_more_than(before), "there are no more threads and files than before")
    with pytest.raises(ClosedError, match="was closed"):
        llm.generate("abc", GREEDY)


def threads_and_files() -> tuple[int, int]:
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def no_more_than(before: tuple[int, int]) -> bool:
    """Threads that were told to end may need a moment for it."""
    return all(now <= then for now, then in zip(threads_and_files(), before, strict=True))


def test_an_engine_that_nobody_has_any_more_is_closed(model: Path) -> None:
    before = set(threading.enumerate())
    llm = LLM(str(model), max_model_len=256, num_gpu_blocks_override=64)
    assert set(threading.enumerate()) - before
    del llm
    wait_until(lambda: set(threading.enumerate()) <= before, "its threads end")


async def drop(held: list[LLM]) -> None:
    held.clear()


def test_an_engine_that_its_own_thread_drops_last_is_closed(model: Path) -> None:
    """Python collects garbage in any thread: in one of the engine's as well, which cannot wait for itself."""
    before = set(threading.enumerate())
    held = [LLM(str(model), max_model_len=256, num_gpu_blocks_override=64)]
    held[0]._session.thread.start(lambda: drop(held))
    wait_until(lambda: set(threading.enumerate()) <= before, "its threads end", 30)


def test_an_engine_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    gc.collect()  # what other tests left is not freed between the two counts
    before = threads_and_files()
    with pytest.raises(Exception, match="nowhere"):
        LLM(str(tmp_path / "nowhere"))
    wait_until(lambda: no_more_than(before), "there are no more threads and files than before")


async def test_a_running_loop_is_no_hindrance(llm: LLM) -> None:
    assert asyncio.get_running_loop().is_running()
    assert llm.generate("abc", GREEDY)[0].finished


def test_calls_from_several_threads(llm: LLM) -> None:
    expected = llm.generate("abc", GREEDY)[0].outputs[0].text
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(llm.generate("abc", GREEDY)[0].outputs[0].text)) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert found == [expected] * 4


FORKED = """
import os, sys
from appliance import LLM
llm = LLM(sys.argv[1], max_model_len=256, num_gpu_blocks_override=64)
child = os.fork()
if child == 0:
    try:
        llm.generate("abc")
    except RuntimeError as error:
        print(error, error.__notes__, flush=True)
        llm.close()
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(len(llm.generate("abc")))
"""


def test_a_fork_is_told_that_the_engine_is_not_its_own(model: Path) -> None:
    told, answered = python(FORKED, str(model)).splitlines()
    assert "forked" in told
    assert "spawn" in told
    assert answered == "1"
