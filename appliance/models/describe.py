"""A checkpoint described: its family's DecoderSpec, and the program that it compiles to. No weight is read."""

import importlib
from collections.abc import Callable, Hashable, Mapping
from typing import NamedTuple, cast

from appliance.catalog.architectures import ARCHITECTURES
from appliance.checkpoint.facts import ModelFacts
from appliance.layers.decoder import compile_decoder
from appliance.layers.program import CompiledDecoder
from appliance.layers.spec import DecoderSpec
from appliance.models.errors import ModelError, Problem


class Described(NamedTuple):
    """A decoder and its program, in which all parts that may be joined are joined."""

    spec: DecoderSpec
    compiled: CompiledDecoder

    def stored_as(self, layouts: Mapping[str, Hashable]) -> "Described":
        """The same decoder, its logical matrices in these layouts: the same program where they take none apart."""
        if all(len({layouts.get(part) for part in use.parts}) == 1 for use in self.compiled.weights.values()):
            return self
        return Described(self.spec, compile_decoder(self.spec, layouts))


def describe(facts: ModelFacts, max_model_len: int) -> Described:
    """The decoder of a checkpoint, for sequences of up to `max_model_len` tokens, with all matrices of one layout.

    Raises ModelError when the architecture, or something its config asks for, is not in this version; CheckpointError
    for a config of another form.
    """
    spec = build_decoder(facts, max_model_len)
    return Described(spec, compile_decoder(spec, {}))


def build_decoder(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """The spec alone. Raises as `describe` does."""
    architecture = ARCHITECTURES.get(facts.architecture)
    if architecture is None or architecture.family is None:
        known = ", ".join(entry.name for entry in ARCHITECTURES.values() if entry.family)
        message = f"the architecture {facts.architecture!r} is not in this version"
        raise ModelError(Problem(message, allowed=known, hint=f"known: {known}"))
    build = cast(Callable[[ModelFacts, int], DecoderSpec], importlib.import_module(architecture.family).build)
    return build(facts, max_model_len)
