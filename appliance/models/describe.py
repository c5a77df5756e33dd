"""Describes a checkpoint by its family's DecoderSpec and the program that it compiles to. No weight is read."""

import importlib
from collections.abc import Callable, Hashable, Mapping
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from appliance.base.bounded import BoundedCalls
from appliance.catalog.architectures import ARCHITECTURES, Architecture
from appliance.catalog.pooling import PoolingChoice
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.facts import ModelFacts
from appliance.layers.decoder import compile_decoder
from appliance.layers.draft_spec import KeptStates
from appliance.layers.program import CompiledDecoder
from appliance.layers.spec import AttentionSpec, DecoderSpec
from appliance.models.draft_heads import DraftHead, as_head
from appliance.models.draft_stages import DraftStages
from appliance.models.errors import ModelError, Problem
from appliance.models.pooling import with_pooling
from appliance.models.windows import DISABLE_WINDOWS, KEEP_ALL, keeping_all, without_windows

MOST_BUILD_S: Final = 60.0  # of a family of another package
Build = Callable[[ModelFacts, int], DecoderSpec]


class Described(NamedTuple):
    """A decoder and its program, with as many weights joined as their layouts allow."""

    spec: DecoderSpec
    compiled: CompiledDecoder

    def stored_as(self, layouts: Mapping[str, Hashable]) -> "Described":
        """Returns the same decoder with its logical matrices in these layouts; the program is the same unless a joined
        weight must be split."""
        if all(len({layouts.get(part) for part in use.parts}) == 1 for use in self.compiled.weights.values()):
            return self
        return Described(self.spec, compile_decoder(self.spec, layouts))


def describe(
    facts: ModelFacts,
    max_model_len: int,
    pooling: PoolingChoice | None = None,
    keeps: KeptStates | None = None,
    *,
    takes_embeds: bool = False,
) -> Described:
    """Returns the decoder of a checkpoint for sequences of up to `max_model_len` tokens, all matrices in one layout.

    pooling: the head of a model that pools. None: the model generates. keeps: what a drafting head reads of it.
    takes_embeds: a step may give embeddings in place of tokens.

    Raises ModelError if this version does not support the architecture or a part of its config; CheckpointError if the
    config has another form.
    """
    spec = build_decoder(facts, max_model_len)
    if pooling is not None:
        spec = with_pooling(spec, facts, pooling)
    elif any(isinstance(layer.mixer, AttentionSpec) and layer.mixer.is_whole for layer in spec.layers):
        message = f"tokens of this {facts.architecture} see those after them: it can embed, and generates nothing"
        raise ModelError(Problem(message, hint="set model.task: embed"))
    if keeps is not None:
        spec = _keeping(spec, keeps)
    if takes_embeds:
        spec = _taking_embeds(spec, facts)
    return Described(spec, compile_decoder(spec, {}))


def describe_head(head: DraftHead, max_model_len: int) -> Described:
    """Returns a drafting head as a decoder and its program. Raises like `describe`."""
    spec = as_head(build_decoder(head.facts, max_model_len), head)
    return Described(spec, compile_decoder(spec, {}))


def describe_stages(stages: DraftStages) -> tuple[Described, ...]:
    """Returns each stage of a head without layers as a decoder and its program."""
    return tuple(Described(spec, compile_decoder(spec, {})) for spec in stages.stages)


def _keeping(spec: DecoderSpec, keeps: KeptStates) -> DecoderSpec:
    """Raises ModelError if what is to be kept would change how the model rounds, or is not there."""
    scaled = any(layer.residual.multiplier != 1.0 for layer in spec.layers)
    if spec.streams is not None or (keeps.layers and scaled):
        message = "the residual stream of this model has several parts or factors, which no drafting head reads here"
        raise ModelError(Problem(message, hint="choose another method of speculation"))
    if any(not 0 <= layer < len(spec.layers) for layer in keeps.layers) or len({*keeps.layers}) < len(keeps.layers):
        message = f"the head reads the model before the layers {keeps.layers}, and the model has {len(spec.layers)}"
        raise ModelError(Problem(message, hint="choose the head of this model"))
    return replace(spec, keeps=keeps)


def _taking_embeds(spec: DecoderSpec, facts: ModelFacts) -> DecoderSpec:
    """Raises ModelError if layers read of a token what no embedding tells."""
    if spec.per_layer is not None:
        message = f"each layer of this {facts.architecture} looks token ids up itself, and an embedding has none"
        raise ModelError(Problem(message, hint="remove model.enable_prompt_embeds", concerns="embeds"))
    return replace(spec, takes_embeds=True)


def build_decoder(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Returns only the spec. Raises like `describe`."""
    architecture = facts.known
    if architecture is None or architecture.family is None:
        known = ", ".join(entry.name for entry in ARCHITECTURES.values() if entry.family)
        message = f"the architecture {facts.architecture!r} is not in this version"
        raise ModelError(Problem(message, allowed=known, hint=f"known: {known}"))
    if architecture.package is not None:
        spec = _built_outside(architecture, facts, max_model_len)
    else:
        build = cast(Build, importlib.import_module(architecture.family).build)
        spec = build(facts, max_model_len)
    spec = without_windows(spec) if facts.config.get(DISABLE_WINDOWS) else spec
    return keeping_all(spec) if facts.config.get(KEEP_ALL) else spec


def _built_outside(architecture: Architecture, facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """Returns the spec of a family of another package, whose program compiles. Raises ModelError, whatever that code
    raises."""
    where = f"the family {architecture.family} of the package {architecture.package} {architecture.version}"
    try:
        build = cast(Build, importlib.import_module(str(architecture.family)).build)
        spec = BoundedCalls(MOST_BUILD_S).run(where, lambda: build(facts, max_model_len))
        compile_decoder(spec, {})
    except (ModelError, CheckpointError):
        raise
    except Exception as error:
        message = f"{where} failed: {type(error).__name__}: {error}"
        raise ModelError(Problem(message, hint="ask those who made the package")) from error
    return spec
