"""What a plan has, Python has: ranks and replicas, refusals, the model's own sampling."""

from pathlib import Path

import pytest

from appliance import LLM, SamplingParams
from appliance.base.errors import SpecError
from appliance.offline.errors import InvalidRequestError
from appliance.service.errors import RequestFailedError

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)
SMALL = {"max_model_len": 256, "num_gpu_blocks_override": 64}


def texts(llm: LLM) -> list[str]:
    return [each.outputs[0].text for each in llm.generate(["abc", "Once upon"], GREEDY, use_tqdm=False)]


def test_ranks_give_the_tokens_of_one(model: Path) -> None:
    with LLM(str(model), **SMALL) as one:
        expected = texts(one)
    with LLM(str(model), tensor_parallel_size=2, **SMALL) as two:
        assert two.plan.parallel.tensor == 2
        assert texts(two) == expected


def test_a_set_that_keeps_its_memory_is_told_at_the_plan(model: Path, tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    named = f"{{source: {model}, enable_sleep_mode: true}}"
    spec.write_text(f"api_version: appliance/v1\nkind: Deployment\nname: kept\nmodel: {named}\n")
    with pytest.raises(SpecError, match="keeps its memory"):
        LLM.from_spec(spec, ["hardware.kernels.kernel_set=reference"])


def test_an_engine_of_a_cpu_sleeps_and_says_the_same(model: Path) -> None:
    with LLM(str(model), enable_sleep_mode=True, **SMALL) as llm:
        expected = texts(llm)
        for level in (1, 2):
            llm.sleep(level)
            with pytest.raises(RequestFailedError, match="the engine sleeps"):
                texts(llm)
            llm.wake_up(["kv_cache"])
            llm.wake_up()
            assert texts(llm) == expected


def test_the_models_own_sampling_counts_without_parameters(model: Path) -> None:
    own = {"temperature": 0.0, "max_new_tokens": 5}
    with LLM(str(model), override_generation_config=own, **SMALL) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.0, max_tokens=5)
        [first], [second] = llm.generate("abc"), llm.generate("abc")
        assert len(first.outputs[0].token_ids) == 5
        assert first.outputs == second.outputs


def test_replicas_refuse_objects_as_processors(model: Path) -> None:
    with LLM(str(model), data_parallel_size=2, **SMALL) as llm:
        assert len(texts(llm)) == 2
        with pytest.raises(InvalidRequestError, match="need the engine in this process"):
            llm.generate("abc", SamplingParams(logits_processors=[lambda output, logits: logits]))


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_call_waits_for_all_whatever_a_server_lets_wait(model: Path, tmp_path: Path, replicas: int) -> None:
    spec = tmp_path / "deploy.yaml"
    spec.write_text(
        f"api_version: appliance/v1\nkind: Deployment\nname: a\nmodel: {{source: {model}, max_model_len: 256}}\n"
        "cache: {num_blocks: 64}\nscheduler: {max_num_seqs: 2, max_waiting: 1}\n"
        f"parallelism: {{data: {replicas}}}\n"
    )
    with LLM.from_spec(spec) as llm:
        outputs = llm.generate(["abc"] * 12, SamplingParams(n=2, max_tokens=4), use_tqdm=False)
        assert [len(each.outputs) for each in outputs] == [2] * 12
        assert llm.plan.scheduler.max_waiting == 1
