"""Which code a plan says that it runs, what it costs, and why other checkpoints have none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.base.errors import SpecError
from appliance.checkpoint.modelling import CodeFile, Modelling, ModellingCode, find_modelling
from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.modelling import RULE
from appliance.plan.prepare import prepare
from appliance.plan.render import render_text
from appliance.plan.types import EnginePlan
from tests.modelling.checkpoints import spec_text
from tests.modelling.conftest import Made
from tests.plan.machines import MODEL, decision, load, plan, small_model

CODE = ModellingCode(
    origin="transformers", model_class="NewForCausalLM", folder="/", files=(CodeFile("modeling_new.py", "0" * 64),)
)
FOUND = Modelling(version="5.0.0", of_transformers=CODE)


def planned(changes: dict[str, Any], text: str = MODEL, found: Modelling | None = FOUND) -> EnginePlan:
    facts = small_model(**({"architectures": ["NewForCausalLM"]} | changes))
    return plan(load(text), facts, files=ResolvedFiles(modelling=found))


def refusals(changes: dict[str, Any], text: str = MODEL, found: Modelling | None = FOUND) -> list[tuple[str, str, str]]:
    with pytest.raises(SpecError) as caught:
        planned(changes, text, found)
    return [(each.rule, each.path, each.message) for each in caught.value.diagnostics]


def test_a_family_that_we_lack_runs_on_transformers_code_and_the_plan_says_what_that_costs(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    folder, _ = made("vaultgemma")
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text(folder, "hardware: {memory: {kv_cache: 1MiB}}\n"))
    found = prepare(spec).plan
    code = found.model.modelling
    assert code is not None
    assert (code.origin, code.model_class, code.code_path) == ("transformers", "VaultGemmaForCausalLM", None)
    assert [Path(file.name).name for file in code.files] == ["modeling_vaultgemma.py", "configuration_vaultgemma.py"]
    assert found.kernels.kernel_set == "transformers"
    assert [choice.operator for choice in found.kernels.choices] == ["PagedAttention[f32]"]
    assert "Python and torch of every layer" in decision(found, "model.modelling").reason
    assert any("no decoder of our own" in warning for warning in found.warnings)
    assert code.files[0].sha256[:12] in render_text(found)
    assert [group.window for group in found.memory[0].kv_groups] == [8, None, 8]
    backend = load_backend(found, SchedulerConfig.from_plan(found), lambda *_: None)
    report = BootReport(seconds={}, memory_bytes=dict(backend.executable.memory_bytes), num_blocks=0)
    rows = {row.name: row for row in compare_boot(found, report)}
    assert rows.keys() == {"weights", "kv_cache", "total"}
    assert rows["kv_cache"].planned_bytes == rows["kv_cache"].measured_bytes
    assert 0 <= rows["weights"].measured_bytes - rows["weights"].planned_bytes < 512  # buffers that code computes
    backend.executable.close()


def test_our_own_decoder_comes_first_and_the_spec_may_choose() -> None:
    llama = {"architectures": ["LlamaForCausalLM"]}
    assert planned(llama).model.modelling is None
    assert planned(llama, MODEL + "  model_impl: appliance\n").model.modelling is None
    chosen = planned(llama, MODEL + "  model_impl: transformers\n")
    assert chosen.model.modelling is not None
    assert chosen.warnings == ()
    assert chosen.engine_sha256 != planned(llama).engine_sha256


def test_what_our_own_decoder_cannot_express_may_be_tried_on_other_code() -> None:
    odd = {"architectures": ["LlamaForCausalLM"], "hidden_act": "quick_gelu"}
    with pytest.raises(SpecError) as caught:
        planned(odd)
    assert "model_impl: transformers" in caught.value.diagnostics[0].hint
    assert planned(odd, MODEL + "  model_impl: transformers\n").model.modelling is not None


def test_other_content_of_the_code_is_another_engine() -> None:
    changed = msgspec.structs.replace(CODE, files=(CodeFile("modeling_new.py", "1" * 64),))
    found = planned({}, found=msgspec.structs.replace(FOUND, of_transformers=changed))
    assert found.engine_sha256 != planned({}).engine_sha256


STUCK = msgspec.structs.replace(CODE, obstacles=("it keeps states of its own besides keys and values",))
HYBRID = {"model_type": "olmo_hybrid", "layer_types": ["full_attention", "linear_attention"]}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}


@pytest.mark.parametrize(
    ("changes", "more", "found", "path", "words"),
    [
        ({}, "", None, "model.model_impl", "transformers is not installed"),
        ({}, "", Modelling(version="5.0.0"), "model.source", "transformers 5.0.0 has no class NewForCausalLM"),
        ({}, "", Modelling(version="5.0.0", of_transformers=STUCK), "model.source", "keeps states of its own"),
        ({"is_encoder_decoder": True}, "", FOUND, "model.source", "is an encoder-decoder"),
        (HYBRID, "", FOUND, "model.source", "1 of 2 layers are of kind linear_attention"),
        ({"attention_chunk_size": 8}, "", FOUND, "model.source", "asks for attention in chunks"),
        ({"num_kv_shared_layers": 1}, "", FOUND, "model.source", "layers that share caches"),
        (DYNAMIC, "", FOUND, "model.source", "rotary positions of kind dynamic"),
        ({"architectures": ["NewEncoder"]}, "", FOUND, "model.source", "NewEncoder is no causal language model"),
        ({}, "  quantization: int8\n", FOUND, "model.quantization", "int8 is made for our own kernels"),
        ({}, "  code_revision: main\n", FOUND, "model.code_revision", "no code that comes with the checkpoint runs"),
    ],
)
def test_what_it_cannot_run_is_refused_by_name(
    changes: dict[str, Any], more: str, found: Modelling | None, path: str, words: str
) -> None:
    rules = [each for each in refusals(changes, f"{MODEL}  model_impl: transformers\n{more}", found) if each[0] == RULE]
    assert len(rules) == 1
    assert rules[0][1] == path
    assert words in rules[0][2]
    if path != "model.code_revision":  # where nobody chose it, the reason stands beside the unknown architecture
        (first, *_) = refusals(changes, MODEL + more, found)
        assert first[:2] == ("plan/architecture", "model.source")
        assert words in first[2]


def test_quantized_and_gguf_weights_are_refused_by_name() -> None:
    text = MODEL + "  model_impl: transformers\n"
    for changed, words in (({"quantization": "gptq"}, "gptq weights need"), ({"format": "gguf"}, "weights are gguf")):
        facts = msgspec.structs.replace(small_model(), **changed)
        with pytest.raises(SpecError) as caught:
            plan(load(text), facts, files=ResolvedFiles(modelling=FOUND))
        assert any(words in each.message for each in caught.value.diagnostics if each.rule == RULE)


def test_another_kernel_set_does_not_run_it() -> None:
    text = MODEL + "hardware: {kernels: {kernel_set: cpu-avx2}}\n"
    (found,) = refusals({}, text)
    assert found[:2] == ("plan/kernel-set", "hardware.kernels.kernel_set")


def test_code_of_the_checkpoint_needs_the_spec_s_permission(own: Path) -> None:
    config = json.loads((own / "config.json").read_text())
    found = find_modelling("TinyOwnForCausalLM", config, own)
    assert found.of_transformers is None
    assert found.of_checkpoint is not None
    changes = {"architectures": ["TinyOwnForCausalLM"]}
    (refused,) = refusals(changes, MODEL + "  model_impl: transformers\n", found)
    assert refused[:2] == (RULE, "model.trust_remote_code")
    assert "modeling_tiny_own.py" in refused[2]
    allowed = planned(changes, MODEL + "  trust_remote_code: true\n  code_revision: v1\n", found).model.modelling
    assert allowed is not None
    assert (allowed.origin, allowed.code_path, allowed.code_revision) == ("checkpoint", str(own), "v1")
    assert [file.name for file in allowed.files] == ["configuration_tiny_own.py", "modeling_tiny_own.py"]


def test_trust_runs_no_code_where_other_code_knows_the_model() -> None:
    found = planned({"architectures": ["LlamaForCausalLM"]}, MODEL + "  trust_remote_code: true\n")
    assert found.model.modelling is None
    assert "no code that comes with the checkpoint" in decision(found, "model.modelling").reason


def test_code_that_is_elsewhere_or_not_there_is_told(tmp_path: Path) -> None:
    config = {"auto_map": {"AutoModelForCausalLM": "owner/other--modeling_x.X"}}
    code = find_modelling("XForCausalLM", config, tmp_path).of_checkpoint
    assert code is not None
    assert code.obstacles == ("its code is in another repository, owner/other",)
    config = {"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}
    code = find_modelling("XForCausalLM", config, tmp_path).of_checkpoint
    assert code is not None
    assert code.obstacles == ("its code is not with the checkpoint: there is no modeling_x.py",)


def test_code_of_transformers_is_found_also_under_another_model_type(tmp_path: Path) -> None:
    by_type = find_modelling("VaultGemmaForCausalLM", {"model_type": "vaultgemma"}, tmp_path).of_transformers
    assert by_type is not None
    assert find_modelling("VaultGemmaForCausalLM", {"model_type": "../x"}, tmp_path).of_transformers == by_type
    stuck = find_modelling("BioGptForCausalLM", {"model_type": "biogpt"}, tmp_path).of_transformers
    assert stuck is not None
    assert stuck.obstacles == ("transformers' code for it does not take attention from outside",)
    states = find_modelling("MambaForCausalLM", {"model_type": "mamba"}, tmp_path).of_transformers
    assert states is not None
    assert "it keeps states of its own besides keys and values" in states.obstacles
