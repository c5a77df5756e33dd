"""What a plan is compiled from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from appliance.checkpoint.adapter import AdapterFacts
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.loader_choice import CheckpointKey
from appliance.checkpoint.modelling import Modelling
from appliance.checkpoint.vocabulary import Likeness
from appliance.hardware.facts import HardwareFacts
from appliance.hardware.profile import Profile
from appliance.hardware.speed import Speed
from appliance.plan.programs import Programs
from appliance.spec import DeploymentSpec, LoadedSpec


class DraftModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The checkpoint of a draft model, and how its vocabulary relates to the model's."""

    facts: ModelFacts
    likeness: Likeness
    tokenizer_path: str  # from which its vocabulary was read


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedFiles:
    """Files that the spec names by path. They are read before planning, so that the passes do no I/O.

    None: the checkpoint's own."""

    tokenizer_path: str | None = None
    config_path: str | None = None  # of another config than the checkpoint's
    chat_template: str | None = None
    generation_config: Mapping[str, Any] | None = None
    packed_dir: str | None = None
    checkpoint_key: CheckpointKey | None = None  # of `loading.model_loader_extra_config`
    profiler_dir: str | None = None  # of `observability.profiler_dir`
    kernels_dir: str | None = None  # of `compilation.cache_dir`
    modelling: Modelling | None = None  # code that could run the model, where our own decoder does not
    adapters: tuple[AdapterFacts, ...] = ()  # in the order of `lora.adapters`
    draft_model: DraftModelFiles | None = None  # of `speculative.model`
    adapter_paths: tuple[str, ...] = ()  # of `lora.runtime_paths`
    adapter_resolver_dir: str | None = None
    weight_update_paths: tuple[str, ...] = ()  # of `model`


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    loaded: LoadedSpec
    facts: HardwareFacts
    profile: Profile
    model: ModelFacts
    files: ResolvedFiles = field(default_factory=ResolvedFiles)
    programs: Programs = field(default_factory=Programs, repr=False, compare=False)

    @property
    def speed(self) -> Speed | None:
        """How fast the machine is, as it was measured or as its profile says."""
        return self.profile.speed(self.facts)

    @property
    def spec(self) -> DeploymentSpec:
        return self.loaded.spec
