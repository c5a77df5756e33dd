"""Plans of models with experts: what they show, what a step reads of them, and what is refused."""

from typing import Any

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint.facts import ModelFacts
from appliance.hardware.facts import MeasuredFacts
from appliance.plan.estimate import Workload, estimate
from appliance.plan.programs import Programs, program_of
from appliance.plan.render import render_text
from appliance.plan.types import EnginePlan

from .checkpoints import from_config
from .machines import load, machine, plan

SERVER = "server-epyc-9654"
READING = MeasuredFacts(read_bandwidth=1e9)
EXPERT_BYTES = 32 * 3 * 4096 * 14336 * 2  # of one in each layer, gate, up and down in bf16


def mixtral(**changes: Any) -> ModelFacts:
    return from_config("mixtral-8x7b", **changes)


def planned(model: ModelFacts) -> EnginePlan:
    return plan(load(), model, machine(SERVER))


def test_the_plan_shows_experts_and_what_a_token_reads_of_them() -> None:
    found = planned(mixtral())
    experts = found.model.experts
    assert experts is not None
    assert (experts.num_experts, experts.num_chosen, experts.num_layers) == (8, 2, 32)
    assert (experts.size_bytes, experts.bytes_per_token) == (8 * EXPERT_BYTES, 2 * EXPERT_BYTES)
    assert "2 of 8 a token in 32 layers; a token reads 21.0 GiB of 84.0 GiB" in render_text(found)
    assert "Experts[bf16]" in {choice.operator for choice in found.kernels.choices}


def test_a_decode_reads_the_experts_that_its_tokens_choose() -> None:
    model = mixtral()
    found = planned(model)
    program = program_of(found, model, Programs())

    def seconds(streams: int) -> float:
        result = estimate(found, program, READING, Workload(streams=streams, prompt=1, answer=2))
        assert result is not None
        return result.itl_s

    cached = found.memory[0].kv_bytes_per_token * 2  # of each stream
    embedded = 4096 * 4
    one = seconds(1)
    for streams in (2, 7):
        read = 8 * EXPERT_BYTES * (1 - 0.75**streams)
        more = (streams - 1) * (cached + embedded) + read - 2 * EXPERT_BYTES
        assert seconds(streams) - one == pytest.approx(more / 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"intermediate_size": 14340}, "experts of 14340 by 4096 are no whole panels of 16 rows"),
        ({"num_experts_per_tok": 9}, "9 experts are to be chosen for a token of 8"),
    ],
)
def test_experts_that_kernels_cannot_take_are_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        planned(mixtral(**changes))


def test_parts_that_are_stored_unlike_are_refused() -> None:
    model = mixtral()
    odd = "model.layers.3.block_sparse_moe.experts.5.w2.weight"
    tensors = (msgspec.structs.replace(each, storage="q8_0") if each.name == odd else each for each in model.tensors)
    changed = msgspec.structs.replace(model, tensors=tuple(tensors), quantization="gguf")
    with pytest.raises(SpecError, match=r"layers\.3\.experts\.down is one weight, and its parts are stored unlike"):
        planned(changed)
