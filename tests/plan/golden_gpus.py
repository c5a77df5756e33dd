"""Golden plans of large models on GPUs, with who runs each operator: some fit, some are refused with what helps."""

from collections.abc import Callable, Iterator
from functools import cache

from appliance.base.errors import ApplianceError
from appliance.checkpoint.facts import ModelFacts
from appliance.hardware import load_facts, load_profiles, select_profile
from appliance.plan.compile import compile_plan
from appliance.plan.render import render_text
from appliance.spec import load_text

from .checkpoints import FP8_BLOCKS, MXFP4_EXPERTS, described_by_itself, from_config
from .golden import SPEC, without_digests

MODELS: dict[str, Callable[[], ModelFacts]] = {
    "gpt-oss-120b": lambda: described_by_itself(from_config("gpt-oss-120b"), coded=MXFP4_EXPERTS),
    "llama-3.1-70b": lambda: from_config("llama-3.1-70b"),
    "deepseek-v3": lambda: described_by_itself(from_config("deepseek-v3"), coded=FP8_BLOCKS),
}
CASES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gpt-oss-120b-h100": ("gpt-oss-120b", "nvidia-h100-sxm-80g", ()),
    "llama-70b-8xh100": ("llama-3.1-70b", "nvidia-8xh100-sxm-80g", ()),
    "llama-70b-8xh100-tp8": ("llama-3.1-70b", "nvidia-8xh100-sxm-80g", ("parallelism.tensor=8",)),
    "llama-70b-mi300x": ("llama-3.1-70b", "amd-mi300x-192g", ()),
    "deepseek-v3-8xh200": ("deepseek-v3", "nvidia-8xh200-sxm-141g", ()),
    "deepseek-v3-8xh200-tp8": ("deepseek-v3", "nvidia-8xh200-sxm-141g", ("parallelism.tensor=8",)),
}
_facts_of = cache(lambda name: MODELS[name]())


def gpus_text() -> str:
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    for title, (name, machine, overrides) in CASES.items():
        yield f"### {title}: {name} on {machine}{''.join(f' --set {each}' for each in overrides)}\n"
        yield without_digests(planned(name, machine, overrides)) + "\n"


def planned(name: str, machine: str, overrides: tuple[str, ...]) -> str:
    loaded = load_text(SPEC.format(name=name), f"{name}.yaml", overrides, {})
    facts = load_facts(machine)
    try:
        profile = select_profile(facts, load_profiles()).profile
        return _without_decisions(render_text(compile_plan(loaded, facts, profile, _facts_of(name)), explain=True))
    except ApplianceError as error:
        return f"exit {int(error.exit_code)}\n{error.report()}"


def _without_decisions(text: str) -> str:
    """The table of decisions is that of any plan, and other tests have it."""
    head, _, rest = text.partition("\ndecision ")
    return head + rest[rest.index("\n\n") + 1 :]
