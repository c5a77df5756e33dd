"""Rules of `decoding`, `multimodal`, `kv_transfer` and `kv_events`."""

import re

from appliance.catalog.parsers import REASONING_PARSERS, TOOL_PARSERS, find_parser
from appliance.catalog.sampling import SAMPLING_BOUNDS
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.plugins import named_plugins
from appliance.spec.rules.finding import Finding, Findings, repeated
from appliance.spec.suggest import near_value

_TOOL_NAMES = tuple(parser.name for parser in TOOL_PARSERS)
_REASONING_NAMES = tuple(parser.name for parser in REASONING_PARSERS)


def tool_choice_needs_a_parser(spec: DeploymentSpec) -> Findings:
    if spec.decoding.enable_auto_tool_choice is True and spec.decoding.tool_parser == "none":
        yield Finding(
            path="decoding.enable_auto_tool_choice",
            value=True,
            message="enable_auto_tool_choice needs a tool parser, and tool_parser is none",
            hint="write decoding.tool_parser: hermes, or what the model was trained for",
        )


def custom_tokenizer_has_a_class(spec: DeploymentSpec) -> Findings:
    mode, name = spec.model.tokenizer_mode, spec.model.tokenizer_cls
    if (mode == "custom") != (name is not None):
        yield Finding(
            path="model.tokenizer_mode" if name is None else "model.tokenizer_cls",
            value=mode if name is None else name,
            message="tokenizer_mode: custom and tokenizer_cls need each other",
            hint="write tokenizer_mode: custom and tokenizer_cls: package.module.Name, or neither",
        )


def plugins_are_trusted(spec: DeploymentSpec) -> Findings:
    for plugin in () if spec.decoding.trust_plugins else named_plugins(spec):
        yield Finding(
            path=plugin.path,
            value=plugin.name,
            message=f"a plug-in is code that runs inside the {plugin.runs_in}, and decoding.trust_plugins is false",
            hint="write decoding.trust_plugins: true if the code is yours",
        )
    for name in ("tool_parser", "reasoning_parser"):
        plugin_name, parser = getattr(spec.decoding, f"{name}_plugin"), getattr(spec.decoding, name)
        if plugin_name is not None and parser != "auto":
            yield Finding(
                path=f"decoding.{name}_plugin",
                value=plugin_name,
                message=f"{name} is {parser}, and {name}_plugin names another one",
                hint=f"remove decoding.{name} or the plug-in",
            )


def processors_leave_time(spec: DeploymentSpec) -> Findings:
    timeout, most = spec.decoding.logits_processor_timeout, spec.restart.heartbeat_timeout / 2
    has_any = spec.decoding.logits_processors or spec.decoding.logits_processor_pattern
    if has_any and not 0 < timeout <= most:
        yield Finding(
            path="decoding.logits_processor_timeout",
            value=timeout,
            message="a processor that is late would have the whole engine taken for hung",
            allowed=f"more than 0 and at most {most:g}s, half of restart.heartbeat_timeout",
            hint="default: 5s",
        )


def parsers_are_known(spec: DeploymentSpec) -> Findings:
    tools = spec.decoding.tool_parser
    if tools not in ("auto", "none") and find_parser(TOOL_PARSERS, tools) is None:
        yield _unknown_parser("decoding.tool_parser", tools, ("auto", "none", *_TOOL_NAMES))
    reasoning = spec.decoding.reasoning_parser
    if reasoning not in ("auto", "none") and find_parser(REASONING_PARSERS, reasoning) is None:
        yield _unknown_parser("decoding.reasoning_parser", reasoning, ("auto", "none", *_REASONING_NAMES))


def _unknown_parser(path: str, name: str, known: tuple[str, ...]) -> Finding:
    near = near_value(name, known)
    hint = f"did you mean {near!r}?" if near else f"name your own in {path}_plugin"
    return Finding(path=path, value=name, message=f"no parser is named {name!r}", allowed=", ".join(known), hint=hint)


def switches_fit_backend(spec: DeploymentSpec) -> Findings:
    backend = spec.decoding.structured_output
    switches = {
        "disable_any_whitespace": ("auto", "guidance", "xgrammar"),
        "disable_additional_properties": ("auto", "guidance"),
    }
    for name, backends in switches.items():
        if getattr(spec.decoding, name) is True and backend not in backends:
            yield Finding(
                path=f"decoding.{name}",
                value=True,
                message=f"the back-end {backend} has no {name}",
                allowed=f"with structured_output {' or '.join(backends)}",
                hint=f"write structured_output: guidance, or remove {name}",
            )


def tool_servers_are_one_thing(spec: DeploymentSpec) -> Findings:
    servers = spec.decoding.tool_server
    for place, name in repeated(server.name for server in servers):
        path, message = f"decoding.tool_server[{place}].name", f"two tool servers are named {name}"
        yield Finding(path=path, value=name, message=message, hint="give each a name of its own")
    for place, server in enumerate(servers):
        path = f"decoding.tool_server[{place}]"
        if (server.command is None) == (server.url is None) or server.command == []:
            message = "a tool server is a command that is started here, or a url"
            yield Finding(path=path, message=message, hint="write one of command and url")
        elif server.url is None and server.headers:
            message = "a command has no headers"
            yield Finding(path=f"{path}.headers", message=message, hint="write env for a command")
        elif server.command is None and server.env:
            message = "a server that runs elsewhere has its own environment"
            yield Finding(path=f"{path}.env", message=message, hint="write headers for a url")


def sampling_defaults_are_valid(spec: DeploymentSpec) -> Findings:
    for name, value in spec.decoding.override_generation_config.items():
        path = f"decoding.override_generation_config.{name}"
        if name not in SAMPLING_BOUNDS:
            near = near_value(name, SAMPLING_BOUNDS)
            known = ", ".join(SAMPLING_BOUNDS)
            hint = f"did you mean {near!r}?" if near else "remove it"
            yield Finding(
                path=path, value=value, message=f"no sampling default is named {name!r}", allowed=known, hint=hint
            )
        elif not SAMPLING_BOUNDS[name].holds(value):
            words = SAMPLING_BOUNDS[name].words
            message = f"{path} cannot be {value!r}"
            yield Finding(path=path, value=value, message=message, allowed=words, hint="remove it for the model's own")


def pattern_compiles(spec: DeploymentSpec) -> Findings:
    pattern = spec.decoding.logits_processor_pattern
    if pattern is None:
        return
    try:
        re.compile(pattern)
    except re.error as error:
        yield Finding(
            path="decoding.logits_processor_pattern",
            value=pattern,
            message=f"the pattern is no regular expression: {error}",
            hint="escape the characters that are meant literally",
        )


def connector_needs_a_role(spec: DeploymentSpec) -> Findings:
    transfer = spec.kv_transfer
    if transfer is not None and transfer.kv_connector is not None and transfer.kv_role is None:
        yield Finding(
            path="kv_transfer.kv_connector",
            value=transfer.kv_connector,
            message="a connector needs kv_role",
            hint="write kv_role: kv_producer, kv_consumer or kv_both",
        )


def events_need_a_publisher(spec: DeploymentSpec) -> Findings:
    events = spec.kv_events
    if events is not None and events.enable_kv_cache_events and events.publisher == "null":
        yield Finding(
            path="kv_events.enable_kv_cache_events",
            value=True,
            message="events are on and nothing publishes them",
            hint="write kv_events.publisher: zmq",
        )


def media_cache_is_on_or_off(spec: DeploymentSpec) -> Findings:
    media = spec.multimodal
    if media is None or not media.disable_mm_preprocessor_cache or "mm_processor_cache" not in media.model_fields_set:
        return
    if media.mm_processor_cache > 0:
        yield Finding(
            path="multimodal.mm_processor_cache",
            value=media.mm_processor_cache,
            message="the cache has a size and disable_mm_preprocessor_cache turns it off",
            hint="remove one of the two",
        )
