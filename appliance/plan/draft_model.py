"""The draft model of speculation: its program, its precision and its memory, beside those of the model."""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.vocabulary import Likeness
from appliance.models.draft_heads import DraftHead
from appliance.plan.describe import describe_model
from appliance.plan.draft_head import KEPT_STATES, plan_head
from appliance.plan.inputs import DraftModelFiles, PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.modelling import Modelled
from appliance.plan.precision import plan_precision
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
from appliance.plan.types import DraftModelPlan, MemoryItem, PrecisionPlan, SchedulerPlan
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
    """A draft model before the memory pass. share: of the bytes that a decode reads, against those of the model."""

    facts: ModelFacts
    likeness: Likeness
    tokenizer_path: str
    program: PlannedProgram
    precision: PrecisionPlan
    step: StepSize
    block_size: int
    head: DraftHead | None = None

    def items(self) -> tuple[MemoryItem, ...]:
        """Returns its weights, activations and workspace; its cache is what `cache_item` says."""
        program, precision, step = self.program, self.precision, self.step
        element = ELEMENT_BYTES[precision.activations]
        tensors = sum(each.num_tensors for each in precision.weights)
        planned = sum(each.planned_bytes for each in precision.weights)
        tables = rope_tables_bytes(program.described.compiled.ropes.values(), step.longest)
        quantize = precision.quantize_activations
        work = workspace_bytes(program, step, quantize_activations=quantize, kv_dtype=precision.kv_dtype)
        formula = f"{tensors} tensors {format_size(planned)}" + (f" + tables {format_size(tables)}" if tables else "")
        states = self._recurrent_item() if self.head is None else (self._states_item(self.head),)
        return (
            *states,
            MemoryItem(name="draft_weights", size_bytes=planned + tables, formula=formula),
            MemoryItem(
                name="draft_activations",
                size_bytes=activation_bytes(program.liveness, step, element),
                formula=activation_formula(program.liveness, program.program.logits, step, element),
            ),
            MemoryItem(name="draft_workspace", size_bytes=work, formula=workspace_formula(program, step)),
        )

    def _recurrent_item(self) -> tuple[MemoryItem, ...]:
        """Returns the recurrent states after each of the last passes."""
        size, num_seqs = self.program.program.state_bytes, self.step.num_sampled
        count = num_slots(num_seqs, 0, num_seqs * STATES_PER_ROW)
        formula = f"{num_seqs} sequences x (1 + {STATES_PER_ROW}) + 1 spare, x {format_size(size)}"
        return (MemoryItem(name="draft_states", size_bytes=count * size, formula=formula),) if size else ()

    def _states_item(self, head: DraftHead) -> MemoryItem:
        """Returns the states of the model that wait to be read by a head."""
        width = self.program.described.spec.hidden_size * max(1, len(head.keeps.layers))
        formula = f"{self.step.num_sampled} sequences x {KEPT_STATES} states x {width:,}, x 4 bytes"
        size = 4 * self.step.num_sampled * KEPT_STATES * width
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
            num_kept_states=0 if self.head is None else KEPT_STATES,
            num_states=STATES_PER_ROW if self.program.program.states else 0,
        )

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


def plan_draft_model(
    inputs: PlanInputs, sizes: DraftingSizes, kernels: KernelSetFacts, head: DraftHead | None, ledger: Ledger
) -> PlannedDraftModel | None:
    """Plans a head, or the draft model. Returns None if the spec asks for none, or it was refused."""
    spec, found = inputs.spec.speculative, inputs.files.draft_model
    if spec is None or (head is None and "draft_model" not in spec.methods):
        return None
    if head is not None:
        found = DraftModelFiles(facts=head.facts, likeness=Likeness("same", 0, 0), tokenizer_path=inputs.model.root)
    if found is None:
        ledger.refuse(PATH, RULE, "the files of the draft model were not read", hint="plan from a spec file")
        return None
    facts, likeness = found.facts, found.likeness
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
    described = describe_model(own, limit, Modelled(), None, books) if head is None else plan_head(head, limit, ledger)
    if described is None:
        return None
    precision, program = plan_precision(own, described, kernels, books)
    path = PATH if spec.model is not None else "speculative.method"
    for refusal in books.refusals:
        ledger.refuse(path, RULE, f"the draft model: {refusal.message}", allowed=refusal.allowed, hint=refusal.hint)
    if books.refusals or _cannot_draft(program, facts, ledger):
        return None
    num_seqs = scheduler.max_num_seqs
    num_tokens = max(min(MOST_TOKENS, scheduler.max_num_batched_tokens), TOKENS_PER_ROW * num_seqs)
    step = StepSize(num_tokens, num_seqs, sizes.num_threads, limit)
    ledger.take("speculation.draft_model.path", PATH, facts.root, f"{facts.architecture}, {limit:,} tokens at most")
    return PlannedDraftModel(facts, likeness, found.tokenizer_path, program, precision, step, sizes.block_size, head)


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
