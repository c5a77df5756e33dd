"""Plans of models that no test machine could load, from their configs and headers alone, to the byte."""

from math import prod

import msgspec
import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.hardware import load_profiles, select_profile
from appliance.models.describe import describe
from appliance.plan.compile import run_passes
from appliance.plan.inputs import PlanInputs
from appliance.program.head_matrices import head_matrices

from .checkpoints import described_by_itself, from_config
from .machines import MODEL, load, machine


class Sizes(msgspec.Struct, frozen=True):
    """What is known of a model from elsewhere.

    parameters: as transformers counts them for its config, with the corrections of routing, which it counts as buffers.
    kv_bytes: of a token in bf16, in all layers. state_bytes: of a sequence, in f32.
    """

    parameters: int
    kv_bytes: int
    state_bytes: int = 0


MODELS = {
    "gpt-oss-20b": Sizes(20_914_757_184, 24 * 2 * 8 * 64 * 2),
    "deepseek-v3": Sizes(671_026_419_200, 61 * (512 + 64) * 2),
    "qwen3.5-35b-a3b": Sizes(34_660_610_688, 10 * 2 * 2 * 256 * 2, 30 * 4 * (32 * 128 * 128 + 3 * 8192)),
    "granite-4.0-h-small": Sizes(32_207_337_984, 4 * 2 * 8 * 128 * 2, 36 * 4 * (128 * 64 * 128 + 3 * 8448)),
    "gemma-3-27b": Sizes(27_009_346_304, 62 * 2 * 16 * 128 * 2),
}
MACHINES = {"h100": "nvidia-h100-sxm-80g", "cpu": "server-epyc-9654"}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[ModelFacts, Sizes]:
    facts = from_config(request.param)
    return facts if facts.tensors else described_by_itself(facts), MODELS[request.param]


def test_the_family_reads_every_parameter(model: tuple[ModelFacts, Sizes]) -> None:
    facts, sizes = model
    described = describe(facts, 4096)
    total = sum(prod(shape) for use in described.compiled.weights.values() for shape in use.shapes)
    assert total == sizes.parameters
    assert described.compiled.program.state_bytes == sizes.state_bytes


@pytest.mark.parametrize("where", MACHINES.values(), ids=MACHINES)
def test_memory_is_that_of_the_program_to_the_byte(model: tuple[ModelFacts, Sizes], where: str) -> None:
    """The passes make the same items where they do not fit, and say by how much."""
    facts, sizes = model
    found_machine = machine(where)
    profile = select_profile(found_machine, load_profiles()).profile
    loaded = load(MODEL + "  max_model_len: 4K\n")
    found = run_passes(PlanInputs(loaded=loaded, facts=found_machine, profile=profile, model=facts)).plan
    memory = found.memory[0]
    items = {item.name: item.size_bytes for item in memory.items}
    assert items["weights"] == weight_bytes(facts, panel=16 if found.device == "cpu" else 1)
    assert memory.kv_bytes_per_token == sizes.kv_bytes
    slots = found.scheduler.max_num_seqs + 1 + (found.cache.num_snapshots or 0)
    assert items.get("states", 0) == slots * sizes.state_bytes


def weight_bytes(facts: ModelFacts, panel: int) -> int:
    """Matrices in bf16; routers, norms, biases, sinks and rotary tables in f32, and keys by head where panels are.
    Rows of matrices are whole panels."""
    compiled = describe(facts, 4096).compiled
    by_head = head_matrices(compiled.program) if panel == 1 else frozenset()
    total = 4 * 4096 * sum(rope.rotary_dim for rope in compiled.ropes.values())
    for name, use in compiled.weights.items():
        rows = [-(-shape[0] // panel) * panel if len(shape) > 1 else shape[0] for shape in use.shapes]
        size = sum(count * prod(shape[1:]) for count, shape in zip(rows, use.shapes, strict=True))
        total += (4 if use.role == "other" and name not in by_head else 2) * size
    return total
