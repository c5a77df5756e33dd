"""Rules of `lora` and `speculative`."""

from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings, repeated

_OF_FILES = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator")  # what drafts is a checkpoint of its own


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


def pins_leave_a_slot(spec: DeploymentSpec) -> Findings:
    lora = spec.lora
    if lora is None:
        return
    pins = [index for index, adapter in enumerate(lora.adapters) if adapter.pinned]
    has_others = len(pins) < len(lora.adapters) or lora.allow_runtime_updating or lora.resolver or lora.resolver_dir
    most = lora.max_loras - 1 if has_others else lora.max_loras
    if len(pins) > most:
        yield Finding(
            path=f"lora.adapters[{pins[most]}].pinned",
            value=True,
            message=f"{len(pins)} pinned adapters leave no slot of {lora.max_loras} for the others",
            allowed=f"at most {most} pinned adapters",
            hint=f"write lora.max_loras: {len(pins) + (lora.max_loras - most)}, or pin fewer",
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
    if guess is None or guess.prompt_lookup_min is None or guess.prompt_lookup_max is None:
        return
    if guess.prompt_lookup_min > guess.prompt_lookup_max:
        yield Finding(
            path="speculative.prompt_lookup_min",
            value=guess.prompt_lookup_min,
            message=f"prompt_lookup_min is more than prompt_lookup_max {guess.prompt_lookup_max}",
            hint=f"write at most {guess.prompt_lookup_max}",
        )


def drafter_fits_method(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None:
        return
    methods = guess.method if isinstance(guess.method, list) else [guess.method]
    if ("custom_class" in methods) != (guess.drafter is not None):
        yield Finding(
            path="speculative.method" if guess.drafter is None else "speculative.drafter",
            value=guess.method if guess.drafter is None else guess.drafter,
            message="the method custom_class and speculative.drafter need each other",
            hint="write method: custom_class and drafter: package.module.name, or neither",
        )


def draft_model_fits_method(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None:
        return
    if bool({*_OF_FILES} & {*guess.methods}) != (guess.model is not None):
        yield Finding(
            path="speculative.method" if guess.model is None else "speculative.model",
            value=guess.method if guess.model is None else guess.model,
            message=f"the methods {', '.join(_OF_FILES)} and speculative.model need each other",
            hint="write method: draft_model and model: a smaller model of the same family, or neither",
        )
    running = [each for each in guess.methods if each in ("mtp", *_OF_FILES)]
    if len(running) > 1:
        yield Finding(
            path="speculative.method",
            value=guess.method,
            message=f"one model or head drafts, beside methods that look drafts up: {' and '.join(running)} are two",
            hint=f"write one of them, such as method: [suffix, {running[0]}]",
        )


def methods_differ(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None or not isinstance(guess.method, list):
        return
    if not guess.method or len({*guess.method}) < len(guess.method):
        yield Finding(
            path="speculative.method",
            value=guess.method,
            message="a list of methods names each once, and at least one",
            hint="write method: [suffix, ngram]",
        )


def drafts_fit_a_step(spec: DeploymentSpec) -> Findings:
    guess = spec.speculative
    if guess is None or not isinstance(guess.num_tokens, int) or not isinstance(guess.max_num_draft_tokens, int):
        return
    if guess.num_tokens > guess.max_num_draft_tokens:
        yield Finding(
            path="speculative.num_tokens",
            value=guess.num_tokens,
            message=f"a step verifies at most max_num_draft_tokens {guess.max_num_draft_tokens}",
            allowed=f"1 to {guess.max_num_draft_tokens}",
            hint=f"write max_num_draft_tokens of at least {guess.num_tokens}",
        )
