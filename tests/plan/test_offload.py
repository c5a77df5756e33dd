"""`hardware.memory.cpu_offload`: which layers are streamed, what that spares and costs, and where it is refused."""

from itertools import pairwise

import pytest

from appliance.base.errors import DiagnosedError, SpecError
from appliance.plan.estimate import Workload, estimate
from appliance.plan.offload import LINK_BYTES_PER_S
from appliance.plan.programs import Programs, program_of
from appliance.plan.types import EnginePlan

from .checkpoints import from_config
from .machines import MODEL, decision, load, plan
from .test_estimate_device import MODEL_8B, machine, profile_of

H100 = "nvidia-h100-sxm-80g"
LAYER_BYTES = 436_207_616  # of Llama 3.1 8B in bfloat16


def planned(*overrides: str) -> EnginePlan:
    return plan(load(MODEL + "  max_model_len: 16K\n", *overrides), MODEL_8B, machine(H100))


def weights(found: EnginePlan) -> int:
    return next(item.size_bytes for item in found.memory[0].items if item.name == "weights")


def test_whole_layers_are_spread_and_what_they_spare_and_cost_is_told() -> None:
    before, found = planned(), planned("hardware.memory.cpu_offload=4GiB")
    layers = found.kernels.streamed_layers
    assert len(layers) == (4 << 30) // LAYER_BYTES == 9
    assert layers[-1] == 31
    assert {after - at for at, after in pairwise(layers)} <= {3, 4}
    assert weights(before) - weights(found) == (9 - 2) * LAYER_BYTES
    (item,) = (item for item in found.memory[0].host_items if item.name == "offloaded")
    assert item.size_bytes == 9 * LAYER_BYTES
    assert found.cache.num_blocks > before.cache.num_blocks
    assert (before.graphs.mode, found.graphs.mode) == ("FULL_AND_PIECEWISE", "NONE")
    assert "157.0 ms at 25 GB/s" in decision(found, "kernels.streamed_layers").reason
    assert found.engine_sha256 != before.engine_sha256


def test_a_step_takes_its_copies_at_least() -> None:
    found = planned("hardware.memory.cpu_offload=4GiB")
    speed = profile_of(H100).speed(machine(H100))
    assert speed is not None
    result = estimate(found, program_of(found, MODEL_8B, Programs()), speed, Workload(streams=1, prompt=128, answer=2))
    assert result.decode_bound == "link"
    assert result.itl_s == pytest.approx(9 * LAYER_BYTES / LINK_BYTES_PER_S, rel=0.01)


def test_a_model_that_does_not_fit_is_told_how_much_would_do() -> None:
    large, text = from_config("llama-3.1-70b"), MODEL + "  max_model_len: 4K\n  quantization: none\n"
    with pytest.raises(DiagnosedError) as caught:
        plan(load(text), large, machine(H100))
    assert "hardware.memory.cpu_offload: 128GiB (each step copies them from host memory)" in caught.value.report()
    found = plan(load(text, "hardware.memory.cpu_offload=128GiB"), large, machine(H100))
    assert len(found.kernels.streamed_layers) == 80


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("hardware.memory.cpu_offload=900MB",), "hold too few layers"),
        (("model.enable_sleep_mode=true",), "does not sleep"),
        (("hardware.memory.cpu_offload=900TiB",), "of host memory"),
        (("compilation.cudagraph_mode=FULL",), "run operator by operator"),
    ],
)
def test_what_cannot_be_streamed_is_refused_by_name(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planned("hardware.memory.cpu_offload=4GiB", *overrides)


def test_a_cpu_set_is_refused_by_the_name_of_its_machine() -> None:
    with pytest.raises(SpecError, match="on laptop-ryzen-7-7840u computes from the memory in which weights lie"):
        plan(load(MODEL, "hardware.memory.cpu_offload=1GiB"))


def test_several_ranks_are_refused() -> None:
    loaded = load(MODEL + "  max_model_len: 16K\n", "hardware.memory.cpu_offload=4GiB", "parallelism.tensor=2")
    with pytest.raises(SpecError, match="2 ranks do not stream layers"):
        plan(loaded, MODEL_8B, machine("nvidia-8xh100-sxm-80g"))
