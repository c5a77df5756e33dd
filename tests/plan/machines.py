"""Small inputs of the planner: a machine, a model, a spec."""

from pathlib import Path
from typing import Any

import msgspec

from appliance.checkpoint.facts import ModelFacts
from appliance.hardware import HardwareFacts, load_facts, load_profiles, select_profile
from appliance.plan.compile import compile_plan
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.types import Decision, EnginePlan
from appliance.spec import LoadedSpec, load_text

from .checkpoints import from_config, from_header

LAPTOP = "laptop-ryzen-7-7840u"
HEAD = "api_version: appliance/v1\nkind: Deployment\nname: test\n"
MODEL = "model:\n  source: ./model\n"


def load(text: str = MODEL, *overrides: str) -> LoadedSpec:
    return load_text(HEAD + text, "test.yaml", overrides, {})


def small_model(**changes: Any) -> ModelFacts:
    """Two layers of a Llama, 128 tokens long."""
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 128,
        "vocab_size": 320,
        "max_position_embeddings": 128,
    }
    return from_config("llama-3.1-8b", **(sizes | changes))


def qwen() -> ModelFacts:
    return from_header("qwen2.5-coder-0.5b-q4_k_m")


def machine(name: str = LAPTOP, *, memory_bytes: int | None = None) -> HardwareFacts:
    facts = load_facts(name)
    if memory_bytes is None:
        return facts
    memory = msgspec.structs.replace(facts.memory, limit_bytes=memory_bytes)
    return msgspec.structs.replace(facts, memory=memory)


def plan(
    loaded: LoadedSpec,
    model: ModelFacts | None = None,
    facts: HardwareFacts | None = None,
    files: ResolvedFiles | None = None,
) -> EnginePlan:
    facts = facts or machine()
    profile = select_profile(facts, load_profiles()).profile
    return compile_plan(loaded, facts, profile, model or small_model(), files)


def decision(found: EnginePlan, path: str) -> Decision:
    """The last decision about a path: a later pass may have the last word."""
    return [each for each in found.decisions if each.path == path][-1]


def write_spec(folder: Path, text: str) -> Path:
    path = folder / "test.yaml"
    path.write_text(HEAD + text)
    return path
