"""The draft model of speculation: its program, its precision and its memory, beside those of the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import msgspec

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.stage_heads import STAGE_METHODS
from appliance.checkpoint.vocabulary import Likeness
from appliance.models.draft_stages import DraftStages
from appliance.plan.describe import describe_model
from appliance.plan.draft_head import KEPT_STATES, Head, plan_head
from appliance.plan.inputs import DraftModelFiles, PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.lent_weights import Lender, lent_weights
from appliance.plan.modelling import Modelled
from appliance.plan.precision import Precision, plan_precision
from appliance.plan.program import PlannedProgram
from appliance.plan.sizes import (
    ELEMENT_BYTES,
    StepSize,
    activation_bytes,
    activation_formula,
    kv_block_bytes,
    kv_sizes,
    rope_tables_bytes,
)
from appliance.plan.types import DraftModelPlan, MemoryItem, PrecisionPlan, SchedulerPlan, WeightPlan
from appliance.plan.weights import Group
from appliance.plan.workspace import workspace_bytes, workspace_formula
from appliance.program.state_slots import num_slots
from appliance.spec import load_text
from appliance.spec.sections.speculative import SpeculativeSection

RULE = "plan/draft-model"
PATH = "speculative.model"
MOST_TOKENS = 512  # of a pass: rows that are behind are read in pieces, so that others do not wait
TOKENS_PER_ROW = 8  # of a pass that drafts for all rows: each has the last token, and some before it
STATES_PER_ROW = 5  # of a draft model with recurrent states: those that a draft begins from, and after four passes
MOST_OF_MEMORY = 8  # the draft model's cache takes at most an eighth of what is left


@dataclass(frozen=True)
class PlannedDraftModel:
    """A draft model before the memory pass. more: the programs of further stages of a head. num_kept_states: of a row,
    that wait for a head. lent: weights of the model that each program reads as its own."""

    facts: ModelFacts
    likeness: Likeness
    tokenizer_path: str
    program: PlannedProgram
    precision: PrecisionPlan
    step: StepSize
    block_size: int
    head: Head | None = None
    more: tuple[PlannedProgram, ...] = ()
    num_kept_states: int = 0
    state_width: int = 0  # of the model
    num_rows: int = 0
    lent: Mapping[str, str] = field(default_factory=dict)

    @property
    def programs(self) -> tuple[PlannedProgram, ...]:
        return self.program, *self.more

    def items(self) -> tuple[MemoryItem, ...]:
        """Returns its weights, activations and workspace; its cache is what `cache_item` says."""
        program, precision, step, count = self.program, self.precision, self.step, len(self.programs)
        element = ELEMENT_BYTES[precision.activations]
        tensors = sum(each.num_tensors for each in precision.weights)
        lent = sum(each.sizes[name] for each in self.programs for name in self.lent)
        planned = sum(each.planned_bytes for each in precision.weights) - lent
        tables = rope_tables_bytes(program.described.compiled.ropes.values(), step.longest)
        quantize = precision.quantize_activations
        work = sum(
            workspace_bytes(each, step, quantize_activations=quantize, kv_dtype=precision.kv_dtype)
            for each in self.programs
        )
        times = "" if count == 1 else f"{count} x "
        formula = f"{tensors} tensors {format_size(planned)}" + (f" + tables {format_size(tables)}" if tables else "")
        formula += f", and {format_size(lent)} of the model's" if lent else ""
        states = self._recurrent_item() if self.head is None else (self._states_item(self.head),)
        return (
            *states,
            MemoryItem(name="draft_weights", size_bytes=planned + tables, formula=formula),
            MemoryItem(
                name="draft_activations",
                size_bytes=sum(activation_bytes(each.liveness, step, element) for each in self.programs),
                formula=times + activation_formula(program.liveness, program.program.logits, step, element),
            ),
            MemoryItem(name="draft_workspace", size_bytes=work, formula=times + workspace_formula(program, step)),
        )

    def _recurrent_item(self) -> tuple[MemoryItem, ...]:
        """Returns the recurrent states after each of the last passes."""
        size, num_seqs = self.program.program.state_bytes, self.step.num_sampled
        count = num_slots(num_seqs, 0, num_seqs * STATES_PER_ROW)
        formula = f"{num_seqs} sequences x (1 + {STATES_PER_ROW}) + 1 spare, x {format_size(size)}"
        return (MemoryItem(name="draft_states", size_bytes=count * size, formula=formula),) if size else ()

    def _states_item(self, head: Head) -> MemoryItem:
        """Returns the states of the model that wait to be read by a head."""
        width, count = self.state_width * max(1, len(head.keeps.layers)), self.num_kept_states
        formula = f"{self.num_rows} sequences x {count} states x {width:,}, x 4 bytes"
        size = 4 * self.num_rows * count * width
        return MemoryItem(name="draft_inputs", size_bytes=size, formula=formula)

    def cache_item(self, spec: SpeculativeSection, left: int, ledger: Ledger) -> tuple[MemoryItem, int]:
        """Returns its cache and how many blocks it has. left: bytes that other items leave."""
        program, kernels = self.program.program, self.program.kernels
        lanes = kv_sizes(program, self.precision.kv_dtype, kernels).lanes_per_token
        block_bytes = kv_block_bytes(lanes, self.block_size, kernels)
        groups = max(1, len(program.kv_layout().windows))
        one = groups * -(-self.step.longest // self.block_size)
        num_blocks = self._num_blocks(spec, left, block_bytes, one, ledger)
        tokens = num_blocks // groups * self.block_size
        formula = f"{num_blocks:,} blocks x {format_size(block_bytes)} ({self.block_size} tokens): {tokens:,} tokens"
        item = MemoryItem(name="draft_kv_cache", size_bytes=num_blocks * block_bytes, formula=formula)
        return item, num_blocks

    def _num_blocks(
        self, spec: SpeculativeSection, left: int, block_bytes: int, one_sequence: int, ledger: Ledger
    ) -> int:
        path = "speculation.draft_model.num_blocks"
        if spec.draft_kv_cache != AUTO:
            return ledger.take(path, "speculative.draft_kv_cache", max(1, int(spec.draft_kv_cache) // block_bytes))
        useful = self.step.num_sampled * one_sequence
        fits = max(1, max(0, left) // MOST_OF_MEMORY // block_bytes)
        if fits < useful:
            return ledger.decide(path, fits, "computed", "an eighth of what weights and activations leave")
        return ledger.decide(path, useful, "computed", "every sequence at full length")

    def plan(self, num_blocks: int, share: float) -> DraftModelPlan:
        return DraftModelPlan(
            path=self.facts.root,
            format=self.facts.format,
            architecture=self.facts.architecture,
            header_sha256=self.facts.header_sha256,
            tokenizer_path=self.tokenizer_path,
            vocabulary=self._vocabulary(),
            max_model_len=self.step.longest,
            max_num_batched_tokens=self.step.num_tokens,
            num_blocks=num_blocks,
            windows=self.program.program.kv_layout().windows,
            precision=self.precision,
            share=round(share, 4),
            num_kept_states=self.num_kept_states,
            num_states=STATES_PER_ROW if self.program.program.states else 0,
            num_tokens=self._most_tokens(),
            lent=dict(self.lent),
        )

    def _most_tokens(self) -> int | None:
        if isinstance(self.head, DraftStages):
            return self.head.num_tokens
        return STATES_PER_ROW - 1 if self.program.program.states else None

    def _vocabulary(self) -> Literal["same", "by_text", "by_table"]:
        if self.head is not None:
            return "same" if self.head.to_target is None else "by_table"
        return "by_text" if self.likeness.relation == "by_text" else "same"


class DraftingSizes(NamedTuple):
    """What the model's plan decides for what drafts beside it."""

    max_model_len: int
    scheduler: SchedulerPlan
    block_size: int
    num_threads: int
    program: PlannedProgram


def _check_ranks(spec: SpeculativeSection | None, ledger: Ledger) -> None:
    """Refuses to divide a draft model among ranks, whose passes are too short to gain by that."""
    path = "speculative.draft_tensor_parallel_size"
    if spec is not None and spec.draft_tensor_parallel_size not in (None, 1):
        message = "the draft model runs whole beside the first rank of the model"
        ledger.refuse(path, RULE, message, allowed="1", hint=f"write 1, or remove {path}")


def plan_draft_model(
    inputs: PlanInputs, sizes: DraftingSizes, kernels: KernelSetFacts, head: Head | None, ledger: Ledger
) -> PlannedDraftModel | None:
    """Plans a head, or the draft model. Returns None if the spec asks for none, or it was refused."""
    spec, found = inputs.spec.speculative, inputs.files.draft_model
    _check_ranks(spec, ledger)
    if spec is None or (head is None and "draft_model" not in spec.methods):
        return None
    if head is not None:
        found = DraftModelFiles(facts=head.facts, likeness=Likeness("same", 0, 0), tokenizer_path=inputs.model.root)
    if found is None:
        ledger.refuse(PATH, RULE, "the files of the draft model were not read", hint="plan from a spec file")
        return None
    facts, likeness = found.facts, found.likeness
    if head is None and facts.architecture in STAGE_METHODS:
        method = STAGE_METHODS[facts.architecture]
        message = f"the checkpoint has heads of the method {method}, and is no draft model"
        ledger.refuse(PATH, RULE, message, hint=f"write method: {method}")
        return None
    if likeness.relation == "none":
        message = (
            f"the draft model has another vocabulary: {likeness.num_shared:,} of its {likeness.num_tokens:,} tokens are"
            " tokens of the model"
        )
        ledger.refuse(PATH, RULE, message, hint="choose a smaller model of the same family")
        return None
    max_model_len, scheduler = sizes.max_model_len, sizes.scheduler
    limit = min(max_model_len, facts.geometry.max_position, spec.max_model_len or max_model_len)
    own = replace(
        inputs, loaded=load_text(_own_spec(inputs, facts, spec, limit), "draft model", environ={}), model=facts
    )
    books = Ledger(own.loaded)
    described = (
        (describe_model(own, limit, Modelled(), None, books),) if head is None else plan_head(head, limit, ledger)
    )
    if not described:
        return None
    precision, programs = _of_all([plan_precision(own, each, kernels, books) for each in described])
    path = PATH if spec.model is not None else "speculative.method"
    for refusal in books.refusals:
        ledger.refuse(path, RULE, f"the draft model: {refusal.message}", allowed=refusal.allowed, hint=refusal.hint)
    if books.refusals or _cannot_draft(programs[0], facts, ledger):
        return None
    step, num_kept = _step(scheduler, sizes.num_threads, limit, head)
    ledger.take("speculation.draft_model.path", PATH, facts.root, f"{facts.architecture}, {limit:,} tokens at most")
    return PlannedDraftModel(
        facts,
        likeness,
        found.tokenizer_path,
        programs[0],
        precision,
        step,
        sizes.block_size,
        head,
        programs[1:],
        num_kept,
        inputs.model.geometry.hidden_size,
        scheduler.max_num_seqs,
        {} if head is None else lent_weights(Lender(sizes.program, inputs.model), programs, head.facts),
    )


def _step(scheduler: SchedulerPlan, num_threads: int, limit: int, head: Head | None) -> tuple[StepSize, int]:
    """Returns the largest pass, and how many states of a row wait for it. Stages read the last state of a row alone,
    before which those of drafts may lie that are not accepted."""
    num_seqs = scheduler.max_num_seqs
    num_drafts = (scheduler.max_num_sampled or num_seqs) - num_seqs
    if isinstance(head, DraftStages):
        num_rows = min(num_seqs, num_drafts)
        return StepSize(num_rows, num_rows, num_threads, limit), num_drafts + 1
    num_tokens = max(min(MOST_TOKENS, scheduler.max_num_batched_tokens), TOKENS_PER_ROW * num_seqs)
    return StepSize(num_tokens, num_seqs, num_threads, limit), 0 if head is None else KEPT_STATES


def _of_all(planned: Sequence[Precision]) -> tuple[PrecisionPlan, tuple[PlannedProgram, ...]]:
    """Returns one plan for the weights of all stages, which are stored alike, and their programs."""
    first, rows = planned[0].plan, dict[Group, WeightPlan]()
    for each in (each for one in planned for each in one.plan.weights):
        known = rows.get((each.storage, each.role))
        rows[each.storage, each.role] = (
            each
            if known is None
            else msgspec.structs.replace(
                known,
                num_tensors=known.num_tensors + each.num_tensors,
                stored_bytes=known.stored_bytes + each.stored_bytes,
                planned_bytes=known.planned_bytes + each.planned_bytes,
            )
        )
    rounds = any(one.plan.quantize_activations for one in planned)
    plan = msgspec.structs.replace(first, weights=tuple(rows.values()), quantize_activations=rounds)
    return plan, tuple(one.program for one in planned)


def _cannot_draft(program: PlannedProgram, facts: ModelFacts, ledger: Ledger) -> bool:
    why = None
    if program.is_outline:
        why = f"the architecture {facts.architecture} of the draft model is not in this version"
    elif program.kernels.runs == "models" or program.kernels.device != "cpu":
        why = f"the kernel set {program.kernels.name} runs no draft model in this version"
    if why is not None:
        ledger.refuse(PATH, RULE, why, hint="choose another draft model, or method: suffix")
    return why is not None


def _own_spec(inputs: PlanInputs, facts: ModelFacts, spec: SpeculativeSection, limit: int) -> str:
    """The spec of the draft model alone: what the model's says of types holds for it as well."""
    model: dict[str, object] = {"source": facts.root, "dtype": inputs.spec.model.dtype, "max_model_len": limit}
    if spec.quantization is not None:
        model["quantization"] = spec.quantization
    rounded = inputs.spec.hardware.kernels.quantize_activations
    document = {
        "api_version": "appliance/v1",
        "kind": "Deployment",
        "name": "draft",
        "model": model,
        "cache": {"dtype": inputs.spec.cache.dtype},
        "hardware": {"kernels": {"quantize_activations": rounded}},
    }
    return msgspec.json.encode(document).decode()
