"""No schedule changes an answer of a model whose layers read the keys of others, or compute with several streams."""

from collections.abc import Callable

import pytest

from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.binding import load_kernel_set
from appliance.models.describe import describe
from tests.engine.simulator import generate
from tests.engine.test_runner import Engine
from tests.models.tiny import VOCAB_SIZE
from tests.parity.conftest import Checkpoint, kernel_set_names
from tests.parity.harness import BLOCK_SIZE, bind, execution_of

CROWD = [
    generate("a", [*range(3, 40)], 20, seed=1, temperature=0.8),
    generate("b", [*range(3, 24), 50, 51, 52], 20, seed=2, n=2, temperature=0.8),
    generate("c", [*range(3, 24), 53, 54], 20, seed=3, temperature=0.8),
    generate("d", [9, 8, 7], 20, temperature=0.0),
]


@pytest.mark.parametrize("name", ["gemma3n", "gemma4", "gemma4-experts"])
def test_answers_are_those_alone_in_chunks_from_caches_after_preemption_and_in_forks(
    name: str, tiny: Callable[[str], Checkpoint]
) -> None:
    facts, execution = tiny(name).facts, execution_of()
    windows = describe(facts, 128).compiled.program.kv_layout().windows
    assert 8 in windows
    assert None in windows
    executable = bind(facts, load_kernel_set(kernel_set_names()[-1]), execution=execution)

    def engine(**changes: object) -> Engine:
        sizes: dict[str, object] = {"num_blocks": 512, "max_num_seqs": 8, "max_num_batched_tokens": 128}
        fixed = {"max_model_len": 128, "block_size": BLOCK_SIZE, "max_num_sampled": 16, "windows": windows}
        return Engine(SchedulerConfig(**(fixed | sizes | changes)), executable=executable, vocab=VOCAB_SIZE)  # type: ignore[arg-type]

    cold = engine(prefix_caching=False)
    expected = {request.request_id: cold.run(request).tokens(request.request_id) for request in CROWD}
    siblings = cold.run(CROWD[1]).tokens("b", 1)
    assert siblings != expected["b"]
    tight = {"num_blocks": 13 * len(windows), "max_num_batched_tokens": 7, "max_num_seqs": 4, "expected_output": 0}
    for changes in ({}, {"max_num_batched_tokens": 5}, tight):
        run = engine(**changes).run(*CROWD)
        assert {key: run.tokens(key) for key in expected} == expected
        assert run.tokens("b", 1) == siblings
        if changes is tight:
            assert run.scheduler.stats(0.0).num_preemptions
        run.run(CROWD[2])
        assert run.tokens("c") == expected["c"]
        assert changes is tight or run.outputs["c", 0][0].num_cached_tokens > 0
