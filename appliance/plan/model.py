"""Pass `model`: which architecture, what clients call it, its tokenizer, template and sampling defaults."""

from msgspec.structs import replace

from appliance.catalog.architectures import ARCHITECTURES, Architecture
from appliance.catalog.content_format import ContentFormat, detect_content_format
from appliance.catalog.templates import QWEN3_RERANKER
from appliance.checkpoint.config_choice import ConfigChoice
from appliance.checkpoint.loader_choice import LoaderChoice
from appliance.checkpoint.mistral import TOKENIZER_MODE
from appliance.models.outside import GROUP
from appliance.plan.checkpoint_values import default_sampling, say_ends
from appliance.plan.context import ContextRequest, config_overrides, model_path
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.loader_options import PATH, loader_of
from appliance.plan.modelling import Modelled
from appliance.plan.tokenizer import plan_tokenizer_mode
from appliance.plan.types import ModelPlan


def plan_model(inputs: PlanInputs, context: ContextRequest, modelled: Modelled, ledger: Ledger) -> ModelPlan:
    """max_model_len is the request; the memory pass may make it less."""
    spec, model, files = inputs.spec.model, inputs.model, inputs.files
    _check_architecture(inputs, modelled, ledger)
    template = _chat_template(inputs, ledger)
    say_ends(inputs, ledger)
    return ModelPlan(
        path=model.root,
        format=model.format,
        architecture=ledger.decide("model.architecture", model.architecture, "model", "named by the checkpoint"),
        header_sha256=model.header_sha256,
        family=_outside_family(model.family, ledger),
        served_names=_served_names(inputs, ledger),
        task="generate",
        max_model_len=context.limit,
        sleep_mode=spec.enable_sleep_mode,
        seed=ledger.take("model.seed", "model.seed", spec.seed or 0),
        tokenizer_path=files.tokenizer_path or model.root,
        skip_tokenizer=spec.skip_tokenizer_init,
        tokenizer_mode=plan_tokenizer_mode(inputs, ledger),
        tokenizer_cls=spec.tokenizer_cls,
        chat_template=template,
        chat_template_content_format=_content_format(inputs, template, ledger),
        default_sampling=default_sampling(inputs, ledger),
        max_logprobs=spec.max_logprobs,
        logprobs_mode=spec.logprobs_mode,
        logits_processors=tuple(inputs.spec.decoding.logits_processors),
        logits_processor_pattern=inputs.spec.decoding.logits_processor_pattern,
        logits_processor_timeout_s=inputs.spec.decoding.logits_processor_timeout,
        loader=_loader(inputs, ledger),
        config=_config(inputs, ledger),
        config_overrides=config_overrides(inputs.spec, model),
        show_load_progress=inputs.spec.loading.use_tqdm_on_load,
        modelling=modelled.plan,
    )


def _loader(inputs: PlanInputs, ledger: Ledger) -> LoaderChoice:
    wanted, key = loader_of(inputs.spec), inputs.files.checkpoint_key
    if wanted.path is not None:
        reason = "your loader reads the tensors, in the planner their names and shapes, in each rank their numbers"
        ledger.take("model.loader.path", "loading.loader_cls", wanted.path, reason)
    if key is not None:
        reason = f"each rank reads the {key.holds} from this file, and opens a tensor when it needs it"
        ledger.take("model.loader.key.path", PATH, key.path, reason)
    return replace(wanted, key=key)


def _config(inputs: PlanInputs, ledger: Ledger) -> ConfigChoice:
    """Which config describes the checkpoint; it was read with it."""
    wanted, place = inputs.spec.model.hf_overrides, inputs.files.config_path
    if place is not None:
        ledger.take("model.config.path", "model.hf_config_path", place)
    for key, value in wanted.items():
        path = f"model.hf_overrides.{key}"
        ledger.take(f"model.config.overrides.{key}", path, value, "in place of what the checkpoint's config has")
    for key in inputs.model.added_keys:
        ledger.warnings.append(f"model.hf_overrides.{key}: the checkpoint's config has no such key, and it is added")
    return ConfigChoice(path=place, overrides=wanted)


def _outside_family(family: Architecture | None, ledger: Ledger) -> Architecture | None:
    if family is None:
        return None
    reason = f"{family.family} of the package {family.package} {family.version}, by its entry point {GROUP}"
    ledger.decide("model.family", family.family, "model", reason)
    return family


def _check_architecture(inputs: PlanInputs, modelled: Modelled, ledger: Ledger) -> None:
    """One that is known and not built is planned but not run; an unknown one is refused, unless other code runs it."""
    if modelled.plan is not None or inputs.spec.model.model_impl == "transformers":
        return
    name = inputs.model.architecture
    known = inputs.model.known
    built = ", ".join(entry.name for entry in ARCHITECTURES.values() if entry.family)
    others = "".join(f"; {each.message}" for each in modelled.obstacles)
    if known is None:
        message = f"the checkpoint's architecture {name!r} is not in this version{others}"
        hint = modelled.obstacles[0].hint if modelled.obstacles else "choose another checkpoint"
        ledger.refuse(model_path(inputs.spec), "plan/architecture", message, allowed=built, hint=hint)
    elif known.family is None:
        ledger.cannot_run.append(f"the architecture {name} is not in this version (built: {built}){others}")


def _served_names(inputs: PlanInputs, ledger: Ledger) -> tuple[str, ...]:
    names = tuple(inputs.spec.model.served_names) or (inputs.spec.name,)
    path = "model.served_names" if inputs.spec.model.served_names else "name"
    return ledger.take("model.served_names", path, names, "the first is reported")


def _chat_template(inputs: PlanInputs, ledger: Ledger) -> str | None:
    if inputs.spec.model.skip_tokenizer_init:
        return None
    if inputs.spec.model.tokenizer_mode == TOKENIZER_MODE:
        reason = "mistral-common writes conversations, as model.tokenizer_mode is mistral"
        return ledger.decide("model.chat_template", None, "spec", reason)
    if inputs.spec.model.chat_template is not None:
        return inputs.files.chat_template or inputs.spec.model.chat_template
    if inputs.files.chat_template is not None:
        reason = "the template of Qwen3-Reranker, which config.json says that the checkpoint is"
        ledger.decide("model.chat_template", QWEN3_RERANKER, "model", reason)
        return inputs.files.chat_template
    if inputs.model.tokenizer.chat_template is None:
        reason = "the checkpoint has no chat template: chat requests will be refused, completions work"
        return ledger.decide("model.chat_template", None, "model", reason)
    return inputs.model.tokenizer.chat_template


def _content_format(inputs: PlanInputs, template: str | None, ledger: Ledger) -> ContentFormat:
    wanted, path = inputs.spec.model.chat_template_content_format, "model.chat_template_content_format"
    if wanted != "auto":
        return ledger.take(path, path, wanted)
    if inputs.spec.model.tokenizer_mode == TOKENIZER_MODE:
        return ledger.decide(path, "openai", "spec", "mistral-common takes the parts of a message's content")
    if template is not None and detect_content_format(template) == "openai":
        return ledger.decide(path, "openai", "model", "the template walks over the parts of a message's content")
    return ledger.decide(path, "string", "model", "the template takes a message's content as text")
