"""Loading modelling code: what it must be, and what a model may not ask of attention."""

import logging
import py_compile
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from appliance.engine.backend import load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.kernels.errors import BindError
from appliance.kernels.interface import Executable
from appliance.loading.modelled import CodeError
from appliance.plan.prepare import Prepared, prepare
from tests.modelling.checkpoints import SIZES, bind, make_unknown, spec_text
from tests.modelling.conftest import Made
from tests.parity.harness import Driver, execution_of

PROMPT = [5, 9, 33, 41, 2, 60, 17, 8, 8, 21, 50]


@pytest.fixture
def trusted(own: Path, tmp_path: Path) -> Prepared:
    folder = tmp_path / "model"
    shutil.copytree(own, folder)
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text(folder, "cache: {block_size: 8}\n", ", trust_remote_code: true"))
    return prepare(spec)


def loaded(prepared: Prepared) -> Executable:
    return load_backend(prepared.plan, SchedulerConfig.from_plan(prepared.plan), lambda *_: None).executable


def test_code_of_the_checkpoint_runs_and_is_logged_by_digest(
    trusted: Prepared, caplog: pytest.LogCaptureFixture
) -> None:
    code = Path(trusted.model.root) / "modeling_tiny_own.py"
    audited = code.read_text()
    code.write_text('raise SystemExit("it ran")\n')  # bytecode beside the source must not run in its place
    py_compile.compile(str(code), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    code.write_text(audited)
    kept = list((code.parent / "__pycache__").iterdir())
    with caplog.at_level(logging.INFO, "appliance.loading"):
        driver = Driver(loaded(trusted), execution_of(block_size=8))
    assert list((code.parent / "__pycache__").iterdir()) == kept != []
    files = [record.appliance_fields for record in caplog.records if record.message == "modelling code"]
    assert [(each["origin"], each["file"]) for each in files] == [
        ("checkpoint", "configuration_tiny_own.py"),
        ("checkpoint", "modeling_tiny_own.py"),
    ]
    assert all(len(each["sha256"]) == 64 for each in files)
    plain = transformers.LlamaForCausalLM.from_pretrained(trusted.model.root, attn_implementation="eager").eval()
    with torch.inference_mode():
        expected = 2 * plain(torch.tensor([PROMPT])).logits[0].numpy()
    np.testing.assert_allclose(driver.all_logits(PROMPT), expected, rtol=2e-4, atol=2e-4)


def test_code_that_changed_since_it_was_planned_does_not_run(trusted: Prepared) -> None:
    code = Path(trusted.model.root) / "modeling_tiny_own.py"
    code.write_text('raise SystemExit("it ran")\n')
    with pytest.raises(CodeError, match=r"not what was planned: modeling_tiny_own\.py"):
        loaded(trusted)
    code.unlink()
    with pytest.raises(CodeError, match=r"not what was planned: modeling_tiny_own\.py"):
        loaded(trusted)


def test_code_that_fails_is_told_by_its_own_words(own: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(own, folder)
    (folder / "modeling_tiny_own.py").write_text('raise ValueError("no such luck")\n')
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec_text(folder, "", ", trust_remote_code: true"))
    with pytest.raises(BindError, match="cannot be built: ValueError: no such luck"):
        loaded(prepare(spec))


@pytest.mark.parametrize(
    ("config_class", "words"),
    [
        ("DogeConfig", "layer 0 makes a mask of its own; layer 1 makes a mask of its own"),
        ("BioGptConfig", "BioGptForCausalLM does not take attention from outside"),
    ],
)
def test_a_model_that_asks_more_of_attention_is_refused(config_class: str, words: str, tmp_path: Path) -> None:
    config = getattr(transformers, config_class)(**{**SIZES, "num_hidden_layers": 2})
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(BindError, match=words):
        bind(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": 6}, "layer 0 does not see the last 6 tokens, as its config says; layer 2 does not"),
        ({"layer_types": ["full_attention"] * 3}, "layer 0 does not see all tokens before it"),
        ({"num_key_value_heads": 4}, "layer 0 has 2 KV heads of 16, and 4 KV heads of 16 are planned"),
        ({"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4}, "layer 3 does not call the attention"),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}, "attention is called for layers 2"),
        ({"vocab_size": 300}, "it gives 256 logits, and the config has a vocabulary of 300"),
    ],
)
def test_layers_that_are_not_as_planned_are_named(
    changes: dict[str, object], words: str, made: Callable[[str], Made]
) -> None:
    """The model is as it was saved, and the plan's caches are those of another config."""
    with pytest.raises(BindError, match=words):
        bind(made("vaultgemma")[0], planned_as=changes)


def test_every_weight_is_accounted_for(tmp_path: Path) -> None:
    def without(name: str) -> Callable[[torch.nn.Module], None]:
        return lambda model: delattr(model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])

    make_unknown("hyperclovax", tmp_path, change=without("model.layers.1.self_attn.o_proj"))
    with pytest.raises(BindError, match=r"lacks 1 tensors: model\.layers\.1\.self_attn\.o_proj\.weight"):
        bind(tmp_path)

    def more(model: torch.nn.Module) -> None:
        model.get_submodule("model").extra = torch.nn.Linear(4, 4, bias=False)

    make_unknown("hyperclovax", tmp_path, change=more)
    with pytest.raises(BindError, match=r"no part of the model reads 1 tensors: model\.extra\.weight"):
        bind(tmp_path)
