"""vLLM's engine arguments become a spec, and what a spec has no place for is an error with a hint."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance import LLM, EngineArgs
from appliance.base.errors import SpecError
from appliance.importing.vllm_fields import fields
from appliance.importing.vllm_python import EngineArgumentError, document_of
from appliance.plan.prepare import prepare
from appliance.spec.loader import load_text


def at(path: str, document: dict[str, Any]) -> Any:
    found: Any = document
    for name in path.split("."):
        found = found[name]
    return found


@pytest.mark.parametrize(
    ("arguments", "path", "value"),
    [
        ({"max_model_len": 4096}, "model.max_model_len", 4096),
        ({"gpu_memory_utilization": 0.5}, "hardware.memory.utilization", 0.5),
        ({"tensor_parallel_size": 2}, "parallelism.tensor", 2),
        ({"enable_prefix_caching": False}, "cache.prefix_caching", False),
        ({"disable_log_stats": True}, "observability.metrics.enabled", False),
        ({"cpu_offload_gb": 2}, "hardware.memory.cpu_offload", "2GiB"),
        ({"distributed_timeout_seconds": 5}, "parallelism.distributed_timeout", "5s"),
        ({"served_model_name": "small"}, "model.served_names", ["small"]),
        ({"dtype": "float32"}, "model.dtype", "float32"),
        ({"download_dir": Path("/models")}, "loading.download_dir", "/models"),
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}, "speculative.num_tokens", 3),
        ({"override_generation_config": {"temperature": 0.5}}, "decoding.override_generation_config.temperature", 0.5),
        ({"enable_lora": True, "max_loras": 2}, "lora.max_loras", 2),
        ({"revision": "1234"}, "model.revision", "1234"),
        ({"hf_token": "hf_secret"}, "loading.hf_token", "hf_secret"),
        ({"seed": 3, "quantization": None}, "model.seed", 3),
    ],
)
def test_an_argument_is_a_field(arguments: dict[str, Any], path: str, value: Any) -> None:
    document = document_of("owner/name", arguments)
    assert at(path, document) == value
    assert at("model.source", document) == "owner/name"


def test_a_program_has_them_on_its_command_line() -> None:
    parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
    parser.add_argument("--temperature", type=float)
    parser.set_defaults(runner="pooling")
    words = ["--model", "m", "--max_model_len", "512", "-tp", "2", "--no-enable-prefix-caching", "--temperature", "1"]
    given = parser.parse_args([*words, "--speculative-config", '{"method": "ngram"}', "--served-model-name", "a", "b"])
    document = document_of("m", EngineArgs.from_cli_args(given).arguments)
    assert document["model"] == {"source": "m", "max_model_len": 512, "runner": "pooling", "served_names": ["a", "b"]}
    assert document["cache"] == {"prefix_caching": False}
    assert document["parallelism"] == {"tensor": 2}
    assert document["speculative"] == {"method": "ngram"}
    assert vars(EngineArgs("m", max_model_len=8)) == {"model": "m", "max_model_len": 8}
    with pytest.raises(EngineArgumentError, match="no model"):
        EngineArgs.from_cli_args(parser.parse_args([]))


def test_a_false_switch_asks_for_nothing() -> None:
    assert "lora" not in document_of("m", {"enable_lora": False})


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"max_model_length": 1}, "max_model_len"),
        ({"tensor_parallel": 1}, "tensor_parallel_size"),
        ({"num_scheduler_steps": 8}, "multi-step"),
    ],
)
def test_an_unknown_argument_has_a_hint(arguments: dict[str, Any], hint: str) -> None:
    with pytest.raises(EngineArgumentError) as found:
        document_of("m", arguments)
    assert next(iter(arguments)) in str(found.value)
    assert hint in (found.value.hint or "")


def test_a_default_of_vllm_that_has_no_field_asks_for_nothing() -> None:
    assert document_of("m", {"renderer_num_workers": 1}) == document_of("m", {})
    with pytest.raises(EngineArgumentError, match="threads"):
        document_of("m", {"renderer_num_workers": 4})


def test_what_has_no_meaning_here_is_refused_with_the_reason() -> None:
    with pytest.raises(EngineArgumentError, match="Neuron"):
        document_of("m", {"override_neuron_config": {"a": 1}})
    with pytest.raises(EngineArgumentError, match="plain data"):
        document_of("m", {"hf_overrides": lambda config: config})


def test_a_wrong_value_is_a_diagnostic_of_the_spec(model: Path) -> None:
    with pytest.raises(SpecError, match=r"scheduler\.max_num_seqs") as found:
        LLM(str(model), max_num_seqs=-3)
    assert "an integer of at least 1" in found.value.__notes__[0]


def test_a_spec_with_overrides_is_the_plan_that_apply_makes(model: Path, tmp_path: Path) -> None:
    spec = tmp_path / "deploy.yaml"
    spec.write_text(
        f"api_version: appliance/v1\nkind: Deployment\nname: a\nmodel: {{source: {model}, max_model_len: 256}}\n"
    )
    wanted = prepare(spec, ["scheduler.max_num_seqs=4", "cache.num_blocks=64"]).plan
    for overrides in (
        {"scheduler.max_num_seqs": 4, "cache.num_blocks": 64},
        {"scheduler": {"max_num_seqs": 4}, "cache": {"num_blocks": 64}},
        ["scheduler.max_num_seqs=4", "cache.num_blocks=64"],
    ):
        with LLM.from_spec(spec, overrides) as llm:
            assert llm.plan == wanted


def test_arguments_and_a_spec_make_one_plan(model: Path) -> None:
    plan = EngineArgs(str(model), max_model_len=256, max_num_seqs=4, num_gpu_blocks_override=64).prepare().plan
    assert (plan.model.max_model_len, plan.scheduler.max_num_seqs) == (256, 4)


def test_every_argument_of_the_table_is_taken() -> None:
    """A spec refuses values, never the place that the table gave them."""
    assert len(fields()) > 100
    for name, found in fields().items():
        if name == "model":
            continue
        document = document_of("m", {name: "auto"})
        with_rest = load_errors(document)
        assert "spec/unknown-key" not in with_rest, (name, found.path, with_rest)
    assert "spec/unknown-key" in load_errors({**document_of("m", {}), "no_such_key": "auto"})


def load_errors(document: dict[str, Any]) -> list[str]:
    try:
        load_text(yaml.safe_dump(document))
    except SpecError as error:
        return [each.rule for each in error.diagnostics]
    return []
