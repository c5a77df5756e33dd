"""Rules of `lora` and `speculative`."""

from appliance.base.diagnostics import Severity
from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings, repeated

_NEED_DRAFT = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")
_BRING_NUM_TOKENS = ("mlp_speculator", "mtp", "auto")


def cpu_slots_cover_slots(spec: DeploymentSpec) -> Findings:
    lora = spec.lora
    if lora is not None and lora.max_cpu_loras is not None and lora.max_cpu_loras < lora.max_loras:
        yield Finding(
            path="lora.max_cpu_loras",
            value=lora.max_cpu_loras,
            message=f"max_cpu_loras is less than max_loras {lora.max_loras}",
            allowed=f"an integer of at least {lora.max_loras}",
            hint="remove lora.max_cpu_loras, or write fewer max_loras",
        )


def adapters_fit_slots(spec: DeploymentSpec) -> Findings:
    if spec.lora is None:
        return
    for index, adapter in enumerate(spec.lora.adapters):
        if adapter.rank is not None and adapter.rank > spec.lora.max_rank:
            yield Finding(
                path=f"lora.adapters[{index}].rank",
                value=adapter.rank,
                message=f"the adapter {adapter.name} of rank {adapter.rank} does not fit slots of {spec.lora.max_rank}",
                hint=f"write lora.max_rank: {adapter.rank}",
            )


def adapter_names_differ(spec: DeploymentSpec) -> Findings:
    if spec.lora is None:
        return
    names = [adapter.name for adapter in spec.lora.adapters]
    for index, name in repeated(names):
        path = f"lora.adapters[{index}].name"
        yield Finding(path=path, value=name, message=f"two adapters are named {name!r}", hint="rename one of them")
    served = {*spec.model.served_names} or {spec.name}
    for index, name in enumerate(names):
        if name in served:
            yield Finding(
                path=f"lora.adapters[{index}].name",
                value=name,
                message=f"{name!r} is the base model's name",
                hint="clients choose by name: rename the adapter",
            )


def lookup_window_is_ordered(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None or guess.prompt_lookup_min is None:
        return
    largest = 5 if guess.prompt_lookup_max is None else guess.prompt_lookup_max
    if guess.prompt_lookup_min > largest:
        yield Finding(
            path="speculative.prompt_lookup_min",
            value=guess.prompt_lookup_min,
            message=f"prompt_lookup_min is more than prompt_lookup_max {largest}",
            hint=f"write at most {largest}",
        )


def draft_model_fits_method(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None:
        return
    if guess.method in _NEED_DRAFT and guess.model is None:
        yield Finding(
            path="speculative.method",
            value=guess.method,
            message=f"the method {guess.method} needs a draft model",
            hint="write speculative.model: hf://owner/name",
        )
    if guess.method == "ngram" and guess.model is not None:
        yield Finding(
            path="speculative.model",
            value=guess.model,
            message="ngram looks its proposals up in the prompt and takes no model",
            hint="remove speculative.model, or write method: draft_model",
        )
    if guess.method == "auto" and guess.model is None:
        yield Finding(
            path="speculative",
            message="neither a method nor a draft model is named",
            hint="write method: ngram, or a model",
        )


def number_of_proposals(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is not None and guess.num_tokens is None and guess.method not in _BRING_NUM_TOKENS:
        yield Finding(
            path="speculative.method",
            value=guess.method,
            message=f"the method {guess.method} needs num_tokens",
            hint="write speculative.num_tokens: 4",
        )


def draft_ranks(spec: DeploymentSpec) -> Findings:
    guess, ranks = spec.speculative, spec.parallelism.tensor
    if guess is None or guess.draft_tensor_parallel_size is None:
        return
    allowed = {1} if guess.method == "mlp_speculator" else {1, ranks}
    if guess.draft_tensor_parallel_size not in allowed:
        words = " or ".join(str(each) for each in sorted(allowed))
        yield Finding(
            path="speculative.draft_tensor_parallel_size",
            value=guess.draft_tensor_parallel_size,
            message=f"a {guess.method} draft beside {ranks} tensor-parallel ranks has {words}",
            allowed=words,
            hint=f"write draft_tensor_parallel_size: {min(allowed)}",
        )


def speculation_has_no_stages(spec: DeploymentSpec) -> Findings:
    if spec.speculative is not None and spec.parallelism.pipeline > 1:
        yield Finding(
            path="speculative",
            message=f"speculation does not run with {spec.parallelism.pipeline} pipeline stages",
            hint="remove speculative, or write parallelism.pipeline: 1",
        )


def posterior_needs_typical(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None or guess.acceptance_method == "typical_acceptance_sampler":
        return
    for name in sorted(guess.model_fields_set & {"posterior_threshold", "posterior_alpha"}):
        yield Finding(
            path=f"speculative.{name}",
            value=getattr(guess, name),
            message=f"speculative.{name} has no use with {guess.acceptance_method}",
            hint="write acceptance_method: typical_acceptance_sampler, or remove it",
            severity=Severity.WARNING,
        )
