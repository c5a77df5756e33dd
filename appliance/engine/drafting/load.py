"""Loads the draft model or the head that a plan names, beside the model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from appliance.base.environ import cache_dir
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import TensorReader
from appliance.checkpoint.vocabulary import read_vocabulary
from appliance.engine.backend import PACKED_FOLDER, Backend, Progress, execution_of, load_backend, planned_facts
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.head import HeadDrafter, HeadShape
from appliance.engine.drafting.interface import ModelDrafter
from appliance.engine.drafting.model import DraftModel
from appliance.engine.drafting.stages import StageDrafter
from appliance.engine.drafting.vocabulary import NO_ID, VocabularyMap
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.interface import Executable, Lending
from appliance.loading.model import BoundHead, Lent, load_head
from appliance.models.describe import Described, describe_head, describe_stages
from appliance.models.draft_heads import DraftHead, head_of_files, head_of_model
from appliance.models.draft_stages import DraftStages, StageMethod, stages_of_files
from appliance.models.errors import ModelError, Problem
from appliance.plan.types import HEAD_METHODS, DraftMethod, DraftModelPlan, EnginePlan


@dataclass(frozen=True, slots=True)
class LoadedDraftModel:
    """memory_bytes: by purpose, under the names of the memory plan. executables: with what opens their checkpoints."""

    drafter: ModelDrafter
    memory_bytes: Mapping[str, int]
    executables: Sequence[BoundHead] = ()


def load_draft_model(
    plan: EnginePlan, config: SchedulerConfig, target: Backend, progress: Progress
) -> LoadedDraftModel | None:
    """Returns None if the plan has no draft model and no head. target: the model, whose weights a head may read. Raises
    like load_backend, and ModelError."""
    speculation = plan.speculation
    draft = None if speculation is None else speculation.draft_model
    if draft is None or speculation is None:
        return None
    method = next((each for each in HEAD_METHODS if each in speculation.methods), None)
    own_plan, own_config = _plan_of(draft, plan), _config_of(draft, config)
    told = _Told(progress)
    loader = _Loader(draft, plan, own_plan, own_config, told, target.executable)
    if method == "medusa" or method == "mlp_speculator":
        return loader.stages(method)
    if method is not None:
        return loader.head(method)
    backend = load_backend(own_plan, own_config, told)
    vocabulary = _vocabulary(draft, plan, target.vocab_size, backend.vocab_size)
    drafter = DraftModel(backend.executable, own_config, vocabulary, draft.num_states)
    assert backend.read_weights is not None, "a planned model has a checkpoint"
    return LoadedDraftModel(drafter, _sizes(backend.executable), (BoundHead(backend.executable, backend.read_weights),))


@dataclass(frozen=True, slots=True)
class _Loader:
    """Loads a head, or its stages. plan: of the model; own_plan, config: of an engine that would run the head alone."""

    draft: DraftModelPlan
    plan: EnginePlan
    own_plan: EnginePlan
    config: SchedulerConfig
    progress: Progress
    target: Executable

    def head(self, method: DraftMethod) -> LoadedDraftModel:
        target = planned_facts(self.plan)
        if method == "mtp":
            head = head_of_model(target)
        else:
            head = head_of_files(planned_facts(self.own_plan), target, "eagle" if method == "eagle" else "eagle3")
        described = describe_head(head, self.own_plan.model.max_model_len)
        bound = self._bound(head.facts, described, self.config)
        executable = bound.executable
        width, num_states = target.geometry.hidden_size, max(1, len(head.keeps.layers))
        is_apart = head.form.draft.reads == "first_layer"
        shape = HeadShape(method, num_states * width, width, is_apart, self.draft.num_kept_states)
        drafter = HeadDrafter(executable, self.config, _vocabulary_of(head, target.geometry.vocab_size), shape)
        return LoadedDraftModel(drafter, {**_sizes(executable), "draft_inputs": drafter.memory_bytes}, (bound,))

    def stages(self, method: StageMethod) -> LoadedDraftModel:
        target = planned_facts(self.plan)
        stages = stages_of_files(planned_facts(self.own_plan), target, method)
        num_rows = self.config.max_num_batched_tokens
        config = replace(self.config, max_num_seqs=num_rows, max_num_sampled=num_rows)
        bound = [self._bound(stages.facts, described, config) for described in describe_stages(stages)]
        geometry = target.geometry
        vocabulary = _vocabulary_of_stages(stages, geometry.vocab_size)
        kept = self.draft.num_kept_states
        shape = HeadShape(method, geometry.hidden_size, stages.own_width, stages.is_apart, kept)
        drafter = StageDrafter([each.executable for each in bound], self.config, vocabulary, shape, stages.num_tokens)
        sizes = Counter({"draft_inputs": drafter.memory_bytes})
        for each in bound:
            sizes.update(_sizes(each.executable))
        return LoadedDraftModel(drafter, sizes, bound)

    def _bound(self, facts: ModelFacts, described: Described, config: SchedulerConfig) -> BoundHead:
        kernel_set, folder = load_kernel_set(self.plan.kernels.kernel_set), cache_dir() / PACKED_FOLDER
        execution = execution_of(self.own_plan, config)

        def progressed(done: int, total: int) -> None:
            self.progress("weights", done, total)

        lent = None
        if self.draft.lent:
            assert isinstance(self.target, Lending), "the plan says that the set lends weights"
            lent = Lent(self.target, self.draft.lent)
        return load_head(self.own_plan, facts, described, kernel_set, execution, progressed, folder, lent)


def _vocabulary_of(head: DraftHead, num_target: int) -> VocabularyMap:
    """Returns the tokens that a head can say: all, or those of its table."""
    if head.to_target is None:
        return VocabularyMap.same(num_target, head.form.draft.head_size or num_target)
    with TensorReader(Path(head.facts.root), [head.to_target]) as reader:
        distances = reader.array(head.to_target.name).astype(np.int64)
    ids = (np.arange(len(distances)) + distances).astype(np.int32)
    to_draft = np.full(num_target, NO_ID, np.int32)
    to_draft[ids] = np.arange(len(ids), dtype=np.int32)
    return VocabularyMap(to_draft, ids)


def _vocabulary_of_stages(stages: DraftStages, num_target: int) -> VocabularyMap:
    """Returns the tokens that stages can say: all, or those of their table. Raises ModelError if that names others."""
    if stages.to_target is None:
        return VocabularyMap.same(num_target, stages.stages[0].vocab_size)
    with TensorReader(Path(stages.facts.root), [stages.to_target]) as reader:
        ids = reader.array(stages.to_target.name).astype(np.int64)
    if not ((ids >= 0) & (ids < num_target)).all() or len(np.unique(ids)) < len(ids):
        message = f"{stages.to_target.name} names tokens twice, or tokens that the model does not have"
        raise ModelError(Problem(message, allowed=f"ids below {num_target:,}", hint="choose the head of this model"))
    to_draft = np.full(num_target, NO_ID, np.int32)
    to_draft[ids] = np.arange(len(ids), dtype=np.int32)
    return VocabularyMap(to_draft, ids.astype(np.int32))


def _sizes(executable: Executable) -> dict[str, int]:
    return {f"draft_{name}": size for name, size in executable.memory_bytes.items()}


class _Told:
    """Announces the phases of a load under names of their own."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def __call__(self, phase: str, done: int, total: int) -> None:
        self._progress(f"draft {phase}", done, total)


def _plan_of(draft: DraftModelPlan, plan: EnginePlan) -> EnginePlan:
    """Returns the plan of an engine that would run the draft model alone."""
    model = msgspec.structs.replace(
        plan.model,
        path=draft.path,
        format=draft.format,
        architecture=draft.architecture,
        header_sha256=draft.header_sha256,
        max_model_len=draft.max_model_len,
        config_overrides={},
        experts=None,
        modelling=None,
        kept_layers=None,
    )
    loading = msgspec.structs.replace(plan.loading, checkpoint_sha256=None)
    parallel = msgspec.structs.replace(plan.parallel, tensor=1, expert=False)  # a leader drafts alone, with all of it
    kernels = msgspec.structs.replace(plan.kernels, screen_logits=False, streamed_layers=())
    return msgspec.structs.replace(
        plan,
        model=model,
        loading=loading,
        kernels=kernels,
        parallel=parallel,
        precision=draft.precision,
        speculation=None,
        adapters=None,
    )


def _config_of(draft: DraftModelPlan, config: SchedulerConfig) -> SchedulerConfig:
    return replace(
        config,
        max_model_len=draft.max_model_len,
        max_num_batched_tokens=draft.max_num_batched_tokens,
        max_num_sampled=config.max_num_seqs,
        num_blocks=draft.num_blocks,
        windows=draft.windows,
        num_snapshots=0 if draft.num_states else None,
        num_draft_states=config.max_num_seqs * draft.num_states,
        chunked_prefill=True,
        speculation=None,
        expert_reads=None,
        max_loras=0,
    )


def _vocabulary(draft: DraftModelPlan, plan: EnginePlan, num_target: int, num_draft: int) -> VocabularyMap:
    ours = theirs = None
    if draft.vocabulary == "by_text":
        ours, theirs = (read_vocabulary(Path(each)) for each in (plan.model.tokenizer_path, draft.tokenizer_path))
    if ours is None or theirs is None:
        return VocabularyMap.same(num_target, num_draft)
    return VocabularyMap.by_text(ours, theirs, num_target, num_draft)
