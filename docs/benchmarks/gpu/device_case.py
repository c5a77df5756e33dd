"""What the parts of device_run.py share: configs, plans, an engine in the process, and its tokens with their times."""

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.plan.prepare import Prepared, prepare
from appliance.plan.types import EnginePlan

SPEC: Final = """\
api_version: appliance/v1
kind: Deployment
name: device
model: {{source: {source}, skip_tokenizer_init: true, served_names: [device]}}
"""
LLAMA: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BIG: Final = LLAMA | {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 16384,
}  # fmt: skip
SMALL: Final = LLAMA | {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 16384, "tie_word_embeddings": True,
}  # fmt: skip
TINY: Final = LLAMA | {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 512,
}  # fmt: skip


Values = dict[str, Any]
Findings = Iterator[tuple[str, Any]]  # names and values of a part, as they are found


@dataclass(frozen=True, slots=True)
class Case:
    """dry: tiny models on torch's CPU device, whose set is `torch`."""

    dry: bool
    kernel_set: str
    models: tuple[str, ...]

    @classmethod
    def of(cls, *, dry: bool, kernel_set: str, models: Sequence[str]) -> "Case":
        return cls(dry, "torch" if dry else kernel_set, tuple(models))


def prepared_of(folder: Path, source: str, *overrides: str) -> Prepared:
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=json.dumps(source)))
    return prepare(spec, overrides)


def plan_of(folder: Path, source: str, *overrides: str) -> EnginePlan:
    return prepared_of(folder, source, *overrides).plan


@contextmanager
def random_model(config: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """A folder for specs, and one with a config, whose weights are random numbers of a seed."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name, "model")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        yield Path(name), str(model)


def generate(
    engine: InprocEngine, prompts: Sequence[Sequence[int]], num_tokens: int, num_logprobs: int | None = None
) -> tuple[list[list[int]], list[list[float]], list[float]]:
    """Returns the tokens of each prompt, their log-probabilities, and when each step ended that gave tokens."""
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    times = [time.perf_counter()]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=num_logprobs)
        engine.send(GenerateRequest(request_id=str(number), prompt_token_ids=list(prompt), sampling=sampling))
    while engine.has_work:
        for event in engine.receive():
            if not isinstance(event, OutputBatch):
                continue
            times.append(time.perf_counter())
            for output in event.outputs:
                if output.error is not None:
                    raise RuntimeError(output.error)
                tokens[int(output.request_id)] += output.token_ids
                logprobs[int(output.request_id)] += [each.logprobs[0] for each in output.logprobs or ()]
    return tokens, logprobs, times


def some_prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    prompts: list[list[int]] = np.random.default_rng(count + length).integers(3, vocabulary, (count, length)).tolist()
    return prompts
