"""Golden plans: what each model becomes on each machine, as the text a user sees."""

from collections.abc import Callable, Iterator

from appliance.base.errors import ApplianceError
from appliance.checkpoint.facts import ModelFacts
from appliance.hardware import load_facts, load_profiles, select_profile
from appliance.plan.compile import compile_plan
from appliance.plan.render import render_text
from appliance.spec import LoadedSpec, load_text

from .checkpoints import from_config, from_header

MACHINES = (
    "laptop-core-i7-1365u",
    "laptop-ryzen-7-7840u",
    "server-xeon-e5-2680-v2",
    "server-epyc-9654",
    "server-xeon-platinum-8480",
    "aws-graviton3-c7g-16xlarge",
    "nvidia-l4-24g",
    "nvidia-h100-sxm-80g",
    "nvidia-8xh200-sxm-141g",
    "amd-mi300x-192g",
)
MODELS: dict[str, Callable[[], ModelFacts]] = {
    "qwen2.5-coder-0.5b-q4_k_m": lambda: from_header("qwen2.5-coder-0.5b-q4_k_m"),
    "gemma-3-270m-q4_k_m": lambda: from_header("gemma-3-270m-q4_k_m"),
    "gpt2": lambda: from_config("gpt2"),
    "mistral-7b-v0.1": lambda: from_config("mistral-7b-v0.1"),
    "llama-3.1-8b": lambda: from_config("llama-3.1-8b"),
    "mixtral-8x7b": lambda: from_config("mixtral-8x7b"),
    "llama-3.1-70b": lambda: from_config("llama-3.1-70b"),
}
SPEC = """\
api_version: appliance/v1
kind: Deployment
name: golden
model:
  source: /models/{name}
"""


def golden_text(name: str, make: Callable[[], ModelFacts]) -> str:
    """All machines one below the other. Digests are left out: they follow from what is shown and from the version."""
    return "\n".join(_sections(name, make()))


def _sections(name: str, model: ModelFacts) -> Iterator[str]:
    loaded = load_text(SPEC.format(name=name), f"{name}.yaml", environ={})
    for machine in MACHINES:
        yield f"### {name} on {machine}\n"
        yield without_digests(_planned(loaded, machine, model)) + "\n"


def _planned(loaded: LoadedSpec, machine: str, model: ModelFacts) -> str:
    facts = load_facts(machine)
    try:
        profile = select_profile(facts, load_profiles()).profile
        return render_text(compile_plan(loaded, facts, profile, model))
    except ApplianceError as error:
        return f"exit {int(error.exit_code)}\n{error.report()}"


def without_digests(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("plan "))
