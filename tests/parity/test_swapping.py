"""A swapped sequence says what it says when it is computed again, in families whose layers keep or read in their own
ways."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from appliance.engine.adapters import AdapterStore
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import GenerateRequest
from appliance.engine.runner import Runner
from appliance.engine.swap_memory import SwapMemory
from appliance.engine.swap_messages import SwapStats
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable, Moves
from appliance.models.describe import describe
from appliance.program.kv_blocks import blocks_held
from tests.engine.scripted_drafter import ScriptedDrafter
from tests.engine.simulator import SPECULATION, generate
from tests.engine.test_speculation import NO_ADAPTERS, Answers, summary, texts
from tests.models.tiny import VOCAB_SIZE
from tests.parity.adapted import adapted
from tests.parity.conftest import Checkpoint
from tests.parity.harness import bind, execution_of

CROWD = [
    generate("a", [*range(3, 40)], 20, seed=1, temperature=0.8, logprobs=1),
    generate("b", [*range(3, 24), 50, 51, 52], 20, seed=2, n=2, temperature=0.8),
    generate("c", [*range(3, 24), 53, 54], 20, seed=3, temperature=0.8, repetition_penalty=1.2),
    generate("d", [9, 8, 7, 6, 5], 24, temperature=0.0),
]
URGENT = [generate("urgent", [*range(60, 70)], 8, temperature=0.0, priority=-1)]
URGENT_AT = 12  # the step before which it comes
# Dense; windows; sinks with windows and experts; latents with experts; hybrids; states alone.
NAMES = ["llama", "gemma2", "gpt-oss", "deepseek3", "qwen3_next", "jamba", "lfm2", "mamba2"]


def tight(checkpoint: Checkpoint, executable: Executable, bounds: Execution) -> SchedulerConfig:
    """So few blocks and rows that the crowd does not fit together."""
    program = describe(checkpoint.facts, 128).compiled.program
    windows, block_size = program.kv_layout().windows, bounds.limits.block_size
    assert isinstance(executable, Moves)
    mover = executable.mover()
    return SchedulerConfig(
        max_model_len=64,
        block_size=block_size,
        num_blocks=blocks_held(windows, block_size, 64, 7),
        max_num_seqs=3,
        max_num_batched_tokens=7,
        max_num_sampled=3,
        windows=windows,
        num_snapshots=2 if program.states else None,
        policy="priority",
        expected_output=0,
        num_swap_places=400,
        num_state_places=-(-mover.state_bytes // (mover.block_bytes or mover.state_bytes)),
    )


class Run:
    """Answers the crowd, and a request that comes later and goes first. `drafts`: the texts that are drafted from."""

    def __init__(
        self,
        config: SchedulerConfig,
        executable: Executable,
        crowd: Sequence[GenerateRequest] = CROWD,
        *,
        drafts: Sequence[Sequence[int]] = (),
        adapters: AdapterStore | None = None,
        served: Mapping[str, ServedAdapter] = NO_ADAPTERS,
        spoil: Callable[[SwapMemory], None] = lambda memory: None,
    ) -> None:
        self.scheduler = Scheduler(config)
        self.scheduler.adapters.served = served
        drafters = [ScriptedDrafter(drafts, "half", VOCAB_SIZE)] if drafts else []
        runner = Runner(executable, config, VOCAB_SIZE, drafters=drafters, adapters=adapters)
        self.answers: Answers = {}
        for request in crowd:
            self.scheduler.add(b"", request)
        step = 0
        while (plan := self.scheduler.schedule()) is not None or step < URGENT_AT:
            assert plan is not None, "the crowd ended before"
            for output in self.scheduler.commit(plan, runner.run(plan)).get(b"", []):
                self.answers.setdefault((output.request_id, output.index), []).append(output)
            self.scheduler.check_invariants()
            if runner.swap is not None:
                spoil(runner.swap)
            step += 1
            for request in URGENT if step == URGENT_AT else ():
                self.scheduler.add(b"", request)

    def swap(self) -> SwapStats:
        found = self.scheduler.stats(0.0).swap
        assert found is not None
        return found


def tokens(answers: Answers) -> dict[tuple[str, int], list[int]]:
    return {key: [token for output in outputs for token in output.token_ids] for key, outputs in answers.items()}


def check(config: SchedulerConfig, executable: Executable, seen: Callable[[Answers], object] = summary) -> None:
    """Holds what swapped sequences say against what they say when they are computed again, with drafts and without.
    `seen`: what is compared of the answers."""
    again = Run(replace(config, num_swap_places=0), executable)
    assert again.scheduler.stats(0.0).num_preemptions > 0
    speculating = replace(config, max_num_sampled=32, speculation=SPECULATION, num_draft_states=20)
    for run in (Run(config, executable), Run(speculating, executable, drafts=texts([*CROWD, *URGENT], again.answers))):
        assert seen(run.answers) == seen(again.answers)
        assert run.swap().num_loaded > 0
        assert run.swap().num_unloaded == 0


def bound(checkpoint: Checkpoint, kernel_set: str, kv_dtype: str = "f32") -> tuple[Executable, Execution]:
    bounds = execution_of(sampled=64, kv_dtype=kv_dtype)
    return bind(checkpoint.facts, load_kernel_set(kernel_set), execution=bounds), bounds


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_those_that_are_computed_again(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    executable, bounds = bound(tiny(name), "cpu-generic")
    check(tight(tiny(name), executable, bounds), executable)


@pytest.mark.parametrize("kernel_set", ["cpu-generic", "reference"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8", "fp8_e4m3"])
def test_codes_move_with_their_scales(kernel_set: str, kv_dtype: str, tiny: Callable[[str], Checkpoint]) -> None:
    executable, bounds = bound(tiny("llama"), kernel_set, kv_dtype)
    # The numbers of the reference set depend on the batch in their last bits.
    check(tight(tiny("llama"), executable, bounds), executable, summary if kernel_set == "cpu-generic" else tokens)


@pytest.mark.parametrize("kernel_set", ["reference", "torch"])
def test_sets_on_torch_move_states_as_well(kernel_set: str, tiny: Callable[[str], Checkpoint]) -> None:
    executable, bounds = bound(tiny("qwen3_next"), kernel_set)
    check(tight(tiny("qwen3_next"), executable, bounds), executable, tokens)


def test_answers_of_adapters_are_those_that_are_computed_again(
    tiny: Callable[[str], Checkpoint], tmp_path: Path
) -> None:
    executable, bounds, store, served = adapted(tiny("llama"), tmp_path)
    config = replace(tight(tiny("llama"), executable, bounds), max_loras=2)
    crowd = [msgspec.structs.replace(each, adapter=name) for each, name in zip(CROWD, (*served, None), strict=True)]
    runs = [
        Run(replace(config, num_swap_places=count), executable, crowd, adapters=store, served=served)
        for count in (0, 400)
    ]
    assert summary(runs[0].answers) == summary(runs[1].answers)
    assert runs[1].swap().num_loaded > 0


@pytest.mark.parametrize("name", ["gpt-oss", "qwen3_next"])
def test_a_place_that_changed_is_found_and_its_sequence_computed_again(
    name: str, tiny: Callable[[str], Checkpoint]
) -> None:
    executable, bounds = bound(tiny(name), "cpu-generic")
    config = tight(tiny(name), executable, bounds)

    def spoil(memory: SwapMemory) -> None:
        memory._places[:, -1] ^= 1  # a bit of the last byte, in every place

    again = Run(replace(config, num_swap_places=0), executable)
    spoiled = Run(config, executable, spoil=spoil)
    assert spoiled.swap().num_unloaded > 0
    assert summary(spoiled.answers) == summary(again.answers)
