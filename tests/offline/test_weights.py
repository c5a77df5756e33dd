"""New weights for an engine of this process: answers are those of an engine that began with them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from appliance import LLM, SamplingParams
from appliance.offline.errors import InvalidRequestError, NotHereError
from appliance.service.errors import RequestFailedError
from tests.e2e.served import make_random_model

ARGUMENTS = {"max_model_len": 512, "max_num_seqs": 4, "num_gpu_blocks_override": 64}
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = ["once upon", "a time", "there was"]


def texts(llm: LLM) -> list[str]:
    return [each.outputs[0].text for each in llm.generate(PROMPTS, GREEDY, use_tqdm=False)]


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    make_random_model(folder, seed=8)
    return folder


@pytest.fixture(scope="module")
def own(model: Path) -> Iterator[LLM]:
    with LLM(str(model), **ARGUMENTS) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model: Path, other: Path) -> dict[Path, list[str]]:
    found = {}
    for each in (model, other):
        with LLM(str(each), **ARGUMENTS) as made:
            found[each] = texts(made)
    assert found[model] != found[other]
    return found


def test_a_checkpoint_takes_the_place_of_another(
    own: LLM, model: Path, other: Path, expected: dict[Path, list[str]]
) -> None:
    before = own.update_weights(model).version
    assert texts(own) == expected[model]
    assert own.update_weights(other).version == before + 1
    assert texts(own) == expected[other]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_take_the_place_of_a_checkpoint(
    own: LLM, model: Path, other: Path, expected: dict[Path, list[str]], kind: str
) -> None:
    own.update_weights(model)
    arrays = load_file(other / "model.safetensors")
    own.update_weights(tensors=arrays if kind == "numpy" else {name: torch.from_numpy(a) for name, a in arrays.items()})
    assert texts(own) == expected[other]


def test_what_is_wrong_leaves_the_weights(own: LLM, model: Path, expected: dict[Path, list[str]]) -> None:
    own.update_weights(model)
    with pytest.raises(InvalidRequestError, match="one of path and tensors"):
        own.update_weights()
    with pytest.raises(InvalidRequestError, match="norm is of int64"):
        own.update_weights(tensors={"norm": np.zeros(4, np.int64)})
    with pytest.raises(InvalidRequestError, match="norm is of list, and not an array"):
        own.update_weights(tensors={"norm": [1.0]})
    with pytest.raises(InvalidRequestError, match="no tensors were given"):
        own.update_weights(tensors={})
    with pytest.raises(RequestFailedError, match="lm_head"):
        own.update_weights(tensors={"lm_head.weight": np.zeros((3, 4), np.float32)})
    assert texts(own) == expected[model]


def test_a_class_of_the_operator_is_called_on_every_rank(model: Path, tmp_path: Path) -> None:
    spec = tmp_path / "deployment.yaml"
    spec.write_text(f"""\
api_version: appliance/v1
kind: Deployment
name: extended
model: {{source: {model}, max_model_len: 512}}
cache: {{num_blocks: 64}}
parallelism: {{worker_extension_cls: tests.engine.extensions.Reports}}
decoding: {{trust_plugins: true}}
""")
    with LLM.from_spec(spec) as made:
        assert made.collective_rpc("add", args=(2,), kwargs={"second": 3}) == [5]
        assert made.collective_rpc("where", timeout=5) == [{"rank": 0, "of": 1}]
        with pytest.raises(InvalidRequestError, match="no method missing"):
            made.collective_rpc("missing")
        with pytest.raises(NotHereError, match="by name"):
            made.collective_rpc(len)  # type: ignore[arg-type]  # as users of vLLM do
