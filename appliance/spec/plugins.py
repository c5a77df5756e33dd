"""The plug-ins that a spec names: code of the operator's own, which needs `decoding.trust_plugins`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from appliance.spec.deployment import DeploymentSpec


@dataclass(frozen=True, slots=True)
class NamedPlugin:
    """path: of the field. name: the dotted path, or a pattern of such. runs_in: the process that imports it."""

    path: str
    name: str
    runs_in: Literal["server", "engine", "planner"]


def named_plugins(spec: DeploymentSpec) -> Iterator[NamedPlugin]:
    """Yields every plug-in that the spec names, in the order of the reference."""
    if spec.model.tokenizer_cls is not None:
        yield NamedPlugin("model.tokenizer_cls", spec.model.tokenizer_cls, "server")
    decoding = spec.decoding
    if spec.loading.loader_cls is not None:
        yield NamedPlugin("loading.loader_cls", spec.loading.loader_cls, "engine")
    if spec.model.resolver is not None:
        yield NamedPlugin("model.resolver", spec.model.resolver, "planner")
    if decoding.tool_parser_plugin is not None:
        yield NamedPlugin("decoding.tool_parser_plugin", decoding.tool_parser_plugin, "server")
    if decoding.reasoning_parser_plugin is not None:
        yield NamedPlugin("decoding.reasoning_parser_plugin", decoding.reasoning_parser_plugin, "server")
    for index, name in enumerate(decoding.logits_processors):
        yield NamedPlugin(f"decoding.logits_processors[{index}]", name, "engine")
    if decoding.logits_processor_pattern is not None:
        yield NamedPlugin("decoding.logits_processor_pattern", decoding.logits_processor_pattern, "engine")
    for index, name in enumerate(spec.endpoints.http.middleware):
        yield NamedPlugin(f"endpoints.http.middleware[{index}]", name, "server")
    for index, name in enumerate(spec.observability.metrics.exporters):
        yield NamedPlugin(f"observability.metrics.exporters[{index}]", name, "server")
    if spec.lora is not None and spec.lora.resolver is not None:
        yield NamedPlugin("lora.resolver", spec.lora.resolver, "server")
    if spec.scheduler.scheduler_cls is not None:
        yield NamedPlugin("scheduler.scheduler_cls", spec.scheduler.scheduler_cls, "engine")
    if spec.parallelism.worker_extension_cls is not None:
        yield NamedPlugin("parallelism.worker_extension_cls", spec.parallelism.worker_extension_cls, "engine")
    if spec.speculative is not None and spec.speculative.drafter is not None:
        yield NamedPlugin("speculative.drafter", spec.speculative.drafter, "engine")
