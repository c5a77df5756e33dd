"""Loads the draft model that a plan names, beside the model."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from appliance.checkpoint.vocabulary import read_vocabulary
from appliance.engine.backend import Progress, load_backend
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.drafting.model import DraftModel
from appliance.engine.drafting.vocabulary import VocabularyMap
from appliance.plan.types import DraftModelPlan, EnginePlan


@dataclass(frozen=True, slots=True)
class LoadedDraftModel:
    """memory_bytes: by purpose, under the names of the memory plan."""

    drafter: DraftModel
    memory_bytes: Mapping[str, int]


def load_draft_model(
    plan: EnginePlan, config: SchedulerConfig, vocab_size: int, progress: Progress
) -> LoadedDraftModel | None:
    """Returns None if the plan has no draft model. Raises like load_backend."""
    draft = None if plan.speculation is None else plan.speculation.draft_model
    if draft is None:
        return None
    own_plan, own_config = _plan_of(draft, plan), _config_of(draft, config)
    backend = load_backend(own_plan, own_config, lambda phase, done, total: progress(f"draft {phase}", done, total))
    vocabulary = _vocabulary(draft, plan, vocab_size, backend.vocab_size)
    sizes = {f"draft_{name}": size for name, size in backend.executable.memory_bytes.items()}
    return LoadedDraftModel(DraftModel(backend.executable, own_config, vocabulary), sizes)


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
    )
    loading = msgspec.structs.replace(plan.loading, checkpoint_sha256=None)
    kernels = msgspec.structs.replace(plan.kernels, screen_logits=False)
    return msgspec.structs.replace(
        plan,
        model=model,
        loading=loading,
        kernels=kernels,
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
        num_snapshots=None,
        num_draft_states=0,
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
