"""Rules of `model` and `loading`."""

from typing import Any

from appliance.base.diagnostics import Severity
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings, repeated

ROPE_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "mrope")
_POOLING_TASKS = ("embed", "classify", "score", "reward")


def mirrors_need_digest(spec: DeploymentSpec) -> Findings:
    if spec.model.mirrors and spec.model.sha256 is None:
        yield Finding(
            path="model.mirrors",
            message="mirrors without model.sha256: nothing would tell a wrong file from the right one",
            hint="write model.sha256: <the digest of the checkpoint file>",
        )


def served_names_differ(spec: DeploymentSpec) -> Findings:
    for index, name in repeated(spec.model.served_names):
        path = f"model.served_names[{index}]"
        yield Finding(path=path, value=name, message=f"the name {name!r} is listed twice", hint="remove one of them")


def bitsandbytes_is_a_pair(spec: DeploymentSpec) -> Findings:
    loads = spec.loading.load_format == "bitsandbytes"
    quantizes = spec.model.quantization == "bitsandbytes"
    if loads and not quantizes:
        yield Finding(
            path="loading.load_format",
            value="bitsandbytes",
            message="load_format bitsandbytes needs model.quantization: bitsandbytes",
            hint="write model.quantization: bitsandbytes, or leave load_format: auto",
        )
    if quantizes and not loads and spec.loading.load_format not in ("auto", "dummy", "sharded_state"):
        yield Finding(
            path="model.quantization",
            value="bitsandbytes",
            message=f"quantization bitsandbytes cannot load the format {spec.loading.load_format}",
            hint="write loading.load_format: bitsandbytes, or leave it auto",
        )


def custom_format_has_a_loader(spec: DeploymentSpec) -> Findings:
    name, wanted = spec.loading.loader_cls, spec.loading.load_format
    if (wanted == "custom") != (name is not None):
        yield Finding(
            path="loading.load_format" if name is None else "loading.loader_cls",
            value=wanted if name is None else name,
            message="load_format: custom and loader_cls need each other",
            hint="write load_format: custom and loader_cls: package.module.Name, or neither",
        )


def gguf_is_gguf(spec: DeploymentSpec) -> Findings:
    is_gguf = spec.model.source.endswith(".gguf")
    if is_gguf and spec.loading.load_format not in ("auto", "gguf"):
        yield Finding(
            path="loading.load_format",
            value=spec.loading.load_format,
            message=f"the source is a .gguf file, which is not {spec.loading.load_format}",
            allowed="auto or gguf",
            hint="remove loading.load_format",
        )
    if is_gguf and spec.model.quantization not in ("auto", "none", "gguf"):
        yield Finding(
            path="model.quantization",
            value=spec.model.quantization,
            message=f"the source is a .gguf file, whose types are in it; it is not {spec.model.quantization}",
            allowed="auto, gguf, or none to dequantize while loading",
            hint="remove model.quantization",
        )


def no_tokenizer_no_text(spec: DeploymentSpec) -> Findings:
    if not spec.model.skip_tokenizer_init:
        return
    for name in ("chat_template", "tokenizer", "tokenizer_revision"):
        if getattr(spec.model, name) is not None:
            yield Finding(
                path=f"model.{name}",
                message=f"model.{name} has no use with skip_tokenizer_init: true",
                hint=f"remove model.{name}, or skip_tokenizer_init",
            )


def runner_fits_task(spec: DeploymentSpec) -> Findings:
    task, runner = spec.model.task, spec.model.runner
    if (task == "generate" and runner == "pooling") or (task in _POOLING_TASKS and runner == "generate"):
        yield Finding(
            path="model.runner",
            value=runner,
            message=f"the runner {runner} cannot do the task {task}",
            allowed="auto",
            hint="remove model.runner; it follows from the task",
        )


def logprobs_limit(spec: DeploymentSpec) -> Findings:
    if spec.model.max_logprobs < -1:
        yield Finding(
            path="model.max_logprobs",
            value=spec.model.max_logprobs,
            message=f"model.max_logprobs cannot be {spec.model.max_logprobs}",
            allowed="-1 for no limit, or an integer of at least 0",
            hint="default: 20",
        )


def rope_scaling_is_complete(spec: DeploymentSpec) -> Findings:
    scaling = spec.model.rope_scaling
    if not scaling:
        return
    kind = scaling.get("rope_type")
    if kind is None:
        old = "type" in scaling
        yield _rope(
            "model.rope_scaling.type" if old else "model.rope_scaling",
            "rope_scaling needs rope_type",
            "rename type to rope_type" if old else f"rope_type is one of {', '.join(ROPE_TYPES)}",
        )
    elif kind not in ROPE_TYPES:
        message = f"rope_type cannot be {kind!r}"
        yield _rope("model.rope_scaling.rope_type", message, f"one of {', '.join(ROPE_TYPES)}", kind)
    elif kind != "default" and not _is_factor(scaling.get("factor")):
        path = "model.rope_scaling.factor" if "factor" in scaling else "model.rope_scaling"
        message = f"rope_type {kind} needs a factor of at least 1"
        yield _rope(path, message, "write factor: 2.0 to double the length", scaling.get("factor"))


def _rope(path: str, message: str, hint: str, value: Any = None) -> Finding:
    return Finding(path=path, message=message, hint=hint, value=value)


def _is_factor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 1


def revision_has_a_hub(spec: DeploymentSpec) -> Findings:
    source = spec.model.source
    if spec.model.revision is not None and source.startswith(("/", "./", "../", "~", "pypi:", "http")):
        yield Finding(
            path="model.revision",
            value=spec.model.revision,
            message="only a hub has revisions, and the source is not on one",
            hint="remove model.revision; use model.sha256 to pin a file",
            severity=Severity.WARNING,
        )


def sharded_state_has_no_adapters(spec: DeploymentSpec) -> Findings:
    if spec.loading.load_format == "sharded_state" and spec.lora is not None:
        yield Finding(
            path="loading.load_format",
            value="sharded_state",
            message="sharded_state weights cannot take adapters",
            hint="load the unsharded checkpoint, or remove lora",
        )


def offline_mirrors_are_local(spec: DeploymentSpec) -> Findings:
    if not spec.loading.offline:
        return
    for index, mirror in enumerate(spec.model.mirrors):
        if mirror.startswith(("http://", "https://")):
            yield Finding(
                path=f"model.mirrors[{index}]",
                value=mirror,
                message="loading.offline: true forbids this mirror",
                hint="remove the mirror, or loading.offline",
            )
