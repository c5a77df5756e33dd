"""A device that fails: the engine ends with one sentence, its requests get it, and no row is blamed."""

from typing import cast

import pytest
import torch

from appliance.engine.core.scheduler import Scheduler
from appliance.engine.loop import EngineLoop
from appliance.engine.messages import ErrorKind, FinishReason, OutputBatch, SequenceOutput
from appliance.engine.process import _why
from appliance.engine.runner import Runner
from appliance.engine.validation import SamplingLimits
from appliance.kernels.errors import ExecutableError
from appliance.kernels.gpu.device import DeviceEvent
from appliance.kernels.gpu.kernel_set import GpuExecutable
from tests.engine.test_runner import VOCAB, configure, drawn, greedy
from tests.engine.tiny_program import tiny_executable

OUT_OF_MEMORY = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.11 GiB."
)
LOST = torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be async")
WHY = {
    OUT_OF_MEMORY: "the device had no memory left for a part of a step of 20.00 MiB; lower hardware.memory.utilization",
    LOST: "the device failed: CUDA error: an illegal memory access was encountered; appliance doctor",
}


def loop_and_executable() -> tuple[EngineLoop, GpuExecutable]:
    config = configure()
    executable = tiny_executable(config, kernel_set="torch")
    return EngineLoop(Scheduler(config), Runner(executable, config, VOCAB), SamplingLimits(4, 4)), cast(
        "GpuExecutable", executable
    )


def failed(loop: EngineLoop) -> ExecutableError:
    """Runs steps until the loop fails."""
    with pytest.raises(ExecutableError) as caught:
        run_on(loop)
    return caught.value


def run_on(loop: EngineLoop) -> None:
    for _ in range(20):
        loop.step()


@pytest.mark.parametrize("error", WHY, ids=["no memory", "illegal access"])
@pytest.mark.parametrize("place", ["operator", "sampler", "wait"])
def test_a_failure_ends_all_requests_with_its_reason(
    error: RuntimeError, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, executable = loop_and_executable()
    loop.handle(b"c", greedy(max_tokens=30))
    loop.handle(b"c", drawn(name="d", max_tokens=30))
    for _ in range(3):
        loop.step()

    def fails(*_: object, **__: object) -> None:
        raise error

    if place == "operator":
        executable._calls[2] = (fails, executable._calls[2][1])
    elif place == "sampler":
        monkeypatch.setattr(executable._sampler, "begin", fails)
    else:  # kernels fail after they were started: whoever waits for them hears of it
        monkeypatch.setattr(DeviceEvent, "wait", fails)
    reason = _why(failed(loop))
    assert reason.startswith(WHY[error])
    assert "\n" not in reason
    ended = [output for _, event in loop.fail_all(reason, ErrorKind.INTERNAL) for output in outputs(event)]
    assert {output.request_id for output in ended} == {"r", "d"}
    assert all(output.finish_reason is FinishReason.ERROR and output.error == reason for output in ended)


def outputs(event: object) -> tuple[SequenceOutput, ...]:
    assert isinstance(event, OutputBatch)
    return tuple(event.outputs)


def test_logits_of_a_lost_device_blame_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that fails alone goes on being served; a device that is lost is not the fault of a row's processor."""
    loop, _ = loop_and_executable()
    loop.handle(b"c", greedy(max_tokens=30))
    loop.step()

    def apply(*_: object) -> None:
        raise ExecutableError("the device failed: it is gone")

    monkeypatch.setattr(loop._runner.processors, "apply", apply)
    assert "it is gone" in str(failed(loop))
