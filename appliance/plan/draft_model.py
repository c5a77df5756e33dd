"""The draft model of speculation: its program, its precision and its memory, beside those of the model."""

from dataclasses import dataclass, replace

import msgspec

from appliance.base.units import format_size
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.vocabulary import Likeness
from appliance.plan.describe import describe_model
from appliance.plan.inputs import PlanInputs
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
from appliance.spec import load_text
from appliance.spec.sections.speculative import SpeculativeSection

RULE = "plan/draft-model"
PATH = "speculative.model"
MOST_TOKENS = 512  # of a pass: rows that are behind are read in pieces, so that others do not wait
TOKENS_PER_ROW = 8  # of a pass that drafts for all rows: each has the last token, and some before it
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
        return (
            MemoryItem(name="draft_weights", size_bytes=planned + tables, formula=formula),
            MemoryItem(
                name="draft_activations",
                size_bytes=activation_bytes(program.liveness, step, element),
                formula=activation_formula(program.liveness, program.program.logits, step, element),
            ),
            MemoryItem(name="draft_workspace", size_bytes=work, formula=workspace_formula(program, step)),
        )

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
            vocabulary="by_text" if self.likeness.relation == "by_text" else "same",
            max_model_len=self.step.longest,
            max_num_batched_tokens=self.step.num_tokens,
            num_blocks=num_blocks,
            windows=self.program.program.kv_layout().windows,
            precision=self.precision,
            share=round(share, 4),
        )


def plan_draft_model(
    inputs: PlanInputs, max_model_len: int, kernels: KernelSetFacts, scheduler: SchedulerPlan, block_size: int,
    num_threads: int, ledger: Ledger,
) -> PlannedDraftModel | None:  # fmt: skip
    """Returns None if the spec asks for none, or it was refused."""
    spec, found = inputs.spec.speculative, inputs.files.draft_model
    if spec is None or "draft_model" not in spec.methods:
        return None
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
    limit = min(max_model_len, facts.geometry.max_position, spec.max_model_len or max_model_len)
    own = replace(
        inputs, loaded=load_text(_own_spec(inputs, facts, spec, limit), "draft model", environ={}), model=facts
    )
    books = Ledger(own.loaded)
    described = describe_model(own, limit, Modelled(), None, books)
    precision, program = plan_precision(own, described, kernels, books)
    for refusal in books.refusals:
        ledger.refuse(PATH, RULE, f"the draft model: {refusal.message}", allowed=refusal.allowed, hint=refusal.hint)
    if books.refusals or _cannot_draft(program, facts, ledger):
        return None
    num_seqs = scheduler.max_num_seqs
    num_tokens = max(min(MOST_TOKENS, scheduler.max_num_batched_tokens), TOKENS_PER_ROW * num_seqs)
    step = StepSize(num_tokens, num_seqs, num_threads, limit)
    ledger.take("speculation.draft_model.path", PATH, facts.root, f"{facts.architecture}, {limit:,} tokens at most")
    return PlannedDraftModel(facts, likeness, found.tokenizer_path, program, precision, step, block_size)


def _cannot_draft(program: PlannedProgram, facts: ModelFacts, ledger: Ledger) -> bool:
    why = None
    if program.is_outline:
        why = f"the architecture {facts.architecture} of the draft model is not in this version"
    elif program.program.states:
        why = "a draft model with recurrent states cannot forget what it drafted, which is not in this version"
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
