"""Weights that are written by rank (`appliance shard`, `load_format: sharded_state`): what cannot be, and for whom."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from appliance import __version__
from appliance.checkpoint.facts import ModelFacts, ShardFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.parallel_types import ParallelPlan
from appliance.plan.types import HEAD_METHODS, EnginePlan, PrecisionPlan

RULE = "plan/sharded-state"
_AGAIN = "write them again for this plan: appliance shard SPEC --output FOLDER"
_FIELDS = {
    "tensor": "parallelism.tensor",
    "pipeline": "parallelism.pipeline",
    "layers": "parallelism.layer_partition",
    "expert_placement_strategy": "parallelism.expert_placement_strategy",
}


class RankRefusal(NamedTuple):
    """What a plan has that weights by rank cannot serve. path: of the spec."""

    path: str
    message: str
    hint: str


def rank_refusals(
    methods: Sequence[str], parallel: ParallelPlan, *, has_adapters: bool, is_modelled: bool
) -> Iterator[RankRefusal]:
    """methods: of speculation."""
    heads = [each for each in methods if each in HEAD_METHODS]
    if has_adapters:
        yield RankRefusal("lora", "weights that are written by rank take no adapters", "remove lora")
    if heads:
        message = f"the head of {heads[0]} reads tensors of the checkpoint, which are not beside weights by rank"
        yield RankRefusal("speculative.method", message, "choose a method without a head, or load the checkpoint")
    if parallel.placing.is_balanced:
        message = "experts that move (parallelism.enable_eplb) are read from the checkpoint"
        yield RankRefusal("parallelism.enable_eplb", message, "remove enable_eplb, or load the checkpoint")
    if parallel.spreads_experts:
        message = "replicas that have the experts among them read their own from the checkpoint"
        yield RankRefusal("parallelism.expert", message, "write expert: false, or load the checkpoint")
    if is_modelled:
        message = "modelling code that is not ours loads the checkpoint whole"
        yield RankRefusal("model.model_impl", message, "load the checkpoint")


def check_by_rank(inputs: PlanInputs, precision: PrecisionPlan, parallel: ParallelPlan, ledger: Ledger) -> None:
    """Refuses a plan that does not fit the weights that were written by rank, which the checkpoint has. What modelling
    code reads is said in its own pass."""
    draft, shards = inputs.files.draft_model, inputs.model.shards
    if draft is not None and draft.facts.shards is not None:
        message = "a draft model is loaded from its checkpoint, and this one was written by rank"
        ledger.refuse("speculative.model", RULE, message, hint="name the checkpoint that it was written from")
    if shards is None:
        return
    methods = () if inputs.spec.speculative is None else inputs.spec.speculative.methods
    has_adapters = inputs.spec.lora is not None
    for path, message, hint in rank_refusals(methods, parallel, has_adapters=has_adapters, is_modelled=False):
        ledger.refuse(path, RULE, message, hint=hint)
    planned = shards_of(parallel, precision)
    for field, path in _FIELDS.items():
        written, wanted = getattr(shards, field), getattr(planned, field)
        if written != wanted:
            message = f"the weights were written for {field}: {_shown(written)}, and the plan has {_shown(wanted)}"
            ledger.refuse(path, RULE, message, allowed=_shown(written), hint=_AGAIN)
            return
    for group, form in planned.forms.items():
        if shards.forms.get(group) != form:
            message = f"{group} weights were written as {shards.forms.get(group, 'nothing')}, and the plan has {form}"
            ledger.refuse("model.quantization", RULE, message, hint=_AGAIN)
            return
    reason = f"each rank maps its own files, which were written for {shards}"
    ledger.take("model.format", "loading.load_format", inputs.model.format, reason)


def not_to_be_written(plan: EnginePlan, model: ModelFacts) -> Iterator[RankRefusal]:
    """Yields why the weights of a plan cannot be written by rank."""
    methods = () if plan.speculation is None else plan.speculation.methods
    is_modelled = plan.model.modelling is not None
    yield from rank_refusals(methods, plan.parallel, has_adapters=plan.adapters is not None, is_modelled=is_modelled)
    if model.format == "gguf":
        yield RankRefusal("model.source", "each rank maps its rows of a GGUF file already", "serve the file as it is")
    if model.format == "dummy":
        yield RankRefusal("loading.load_format", "random weights are made at each start", "remove load_format: dummy")
    if model.is_encrypted:
        message = "it is encrypted, and what is written by rank would be plain"
        yield RankRefusal("model.source", message, "serve the file as it is")
    if model.shards is not None:
        message = f"it was written by rank already, for {model.shards}"
        yield RankRefusal("model.source", message, "name the checkpoint that it was written from")


def shards_of(parallel: ParallelPlan, precision: PrecisionPlan) -> ShardFacts:
    """Returns what decides which weights each rank of a plan has, and in which forms."""
    return ShardFacts(
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        layers=parallel.layers,
        expert_placement_strategy=parallel.expert_placement_strategy,
        forms={f"{each.storage} {each.role}": _form(each.layout, each.group_size) for each in precision.weights},
        written_by=__version__,
    )


def _form(layout: str, group_size: int | None) -> str:
    return layout if group_size is None else f"{layout} in groups of {group_size}"


def _shown(value: object) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
