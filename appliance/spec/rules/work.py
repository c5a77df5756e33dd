"""Rules of `batch` and `bench`."""

from collections.abc import Iterator

from appliance.base.diagnostics import Severity
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings, repeated
from appliance.spec.sections.work import ScenarioSection

_ONLY_SERVE = ("request_rate", "burstiness", "max_concurrency", "stream", "max_duration")


def batch_files_differ(spec: DeploymentSpec) -> Findings:
    batch = spec.batch
    for name, other in (("output_file", "input_file"), ("error_file", "output_file"), ("error_file", "input_file")):
        if getattr(batch, name) is not None and getattr(batch, name) == getattr(batch, other):
            yield Finding(
                path=f"batch.{name}",
                value=getattr(batch, name),
                message=f"batch.{name} would overwrite batch.{other}",
                hint="write another path",
            )


def batch_metrics_are_of_this_process(spec: DeploymentSpec) -> Findings:
    if spec.batch.metrics.enabled and spec.batch.backend == "ray":
        yield Finding(
            path="batch.metrics.enabled",
            value=True,
            message="engines of a cluster are in other processes, which have metrics of their own",
            hint="write batch.backend: local, or remove batch.metrics",
        )


def scenario_names_differ(spec: DeploymentSpec) -> Findings:
    for index, name in repeated(scenario.name for scenario in spec.bench.scenarios):
        path = f"bench.scenarios[{index}].name"
        yield Finding(path=path, value=name, message=f"two scenarios are named {name!r}", hint="rename one of them")


def trace_has_a_file(spec: DeploymentSpec) -> Findings:
    for path, scenario in _scenarios(spec):
        if scenario.workload == "trace" and scenario.trace_file is None:
            yield Finding(
                path=f"{path}.workload",
                value="trace",
                message="the trace workload needs trace_file",
                hint="write trace_file: <a JSONL file of requests>",
            )
        if scenario.workload != "trace" and scenario.trace_file is not None:
            yield Finding(
                path=f"{path}.trace_file",
                value=scenario.trace_file,
                message=f"the workload {scenario.workload} reads no trace",
                hint="write workload: trace, or remove trace_file",
            )


def shared_prefix_has_a_length(spec: DeploymentSpec) -> Findings:
    for path, scenario in _scenarios(spec):
        if scenario.workload == "shared-prefix" and scenario.prefix_len == 0:
            yield Finding(
                path=f"{path}.workload",
                value="shared-prefix",
                message="shared-prefix needs prefix_len",
                hint="write prefix_len: the tokens that prompts share",
            )
        if scenario.workload == "shared-prefix" and scenario.prefix_len >= scenario.input_len:
            yield Finding(
                path=f"{path}.prefix_len",
                value=scenario.prefix_len,
                message=f"a shared prefix of {scenario.prefix_len} fills prompts of {scenario.input_len}",
                hint=f"write less than {scenario.input_len}",
            )


def lengths_spread_below_one(spec: DeploymentSpec) -> Findings:
    for path, scenario in _scenarios(spec):
        if scenario.range_ratio >= 1:
            yield Finding(
                path=f"{path}.range_ratio",
                value=scenario.range_ratio,
                message="lengths would fall to 0",
                allowed="a number from 0 to below 1",
                hint="write range_ratio: 0.5 for half to one and a half",
            )


def rates_are_for_serving(spec: DeploymentSpec) -> Findings:
    for path, scenario in _scenarios(spec):
        for name in _ONLY_SERVE:
            if scenario.kind != "serve" and name in scenario.model_fields_set:
                yield Finding(
                    path=f"{path}.{name}",
                    value=getattr(scenario, name),
                    message=f"a {scenario.kind} run has no {name}",
                    hint=f"write kind: serve, or remove {name}",
                )
        if scenario.kind != "latency" and "batch_size" in scenario.model_fields_set:
            yield Finding(
                path=f"{path}.batch_size",
                value=scenario.batch_size,
                message=f"a {scenario.kind} run has no fixed batch",
                hint="write kind: latency, or remove batch_size",
                severity=Severity.WARNING,
            )


def scenarios_fit_the_context(spec: DeploymentSpec) -> Findings:
    length = spec.model.max_model_len
    for path, scenario in _scenarios(spec):
        longest = int((scenario.input_len + scenario.output_len) * (1 + scenario.range_ratio))
        if isinstance(length, int) and scenario.workload != "trace" and longest > length:
            yield Finding(
                path=f"{path}.input_len" if "input_len" in scenario.model_fields_set else path,
                value=scenario.input_len,
                message=f"requests of up to {longest} tokens do not fit max_model_len {length}",
                hint=f"write input_len + output_len of at most {length}, or a longer max_model_len",
            )


def _scenarios(spec: DeploymentSpec) -> Iterator[tuple[str, ScenarioSection]]:
    for index, scenario in enumerate(spec.bench.scenarios):
        yield f"bench.scenarios[{index}]", scenario
