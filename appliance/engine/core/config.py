"""The part of a plan that the scheduler needs."""

from dataclasses import dataclass
from typing import Literal, Self

from appliance.catalog.pooling import PoolingKind
from appliance.engine.core.step_costs import ExpertReads
from appliance.engine.messages import SpeculationCaps
from appliance.plan.types import EnginePlan, HashAlgorithm
from appliance.program.kv_blocks import longest_held
from appliance.program.state_slots import num_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """Raises ValueError for sizes that cannot work together."""

    max_model_len: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_sampled: int  # rows of logits that a step may compute
    chunked_prefill: bool = True
    max_num_partial_prefills: int = 1
    max_long_partial_prefills: int = 1
    long_prefill_token_threshold: int = 0
    policy: Literal["fcfs", "priority"] = "fcfs"
    prefix_caching: bool = True
    hash_algorithm: HashAlgorithm = "builtin"
    max_waiting: int | None = None
    windows: tuple[int | None, ...] = (
        None,
    )  # the sliding window of each group of caches, in tokens; None for full attention
    num_snapshots: int | None = None  # of the recurrent states; None for a model that has none
    num_draft_states: int = 0  # slots of states after drafts, of a model that has states
    target_step_s: float | None = None  # how long a step with decodes should last; None sets no bound
    late_share: float = 0.0  # the share of gaps between tokens that may be longer, so that waiting prompts run
    pooling: PoolingKind | None = None  # the model pools: a sequence ends when its prompt has run
    expected_output: int = 128  # tokens of an answer, before the first answer has finished
    speculation: SpeculationCaps | None = None  # max_num_sampled beyond max_num_seqs is then for drafts
    expert_reads: ExpertReads | None = None  # of a model with experts, to presume what drafts cost
    max_loras: int = 0  # adapters of the sequences that run
    max_lora_rank: int = 0  # of an adapter, or of several together
    num_swap_places: int = 0  # of host memory, for blocks of preempted sequences; 0: these are computed again
    num_state_places: int = 0  # how many of these the recurrent states of a sequence take
    swap_place_bytes: int = 0
    delay_factor: float = 0.0  # prompts wait for so many times what the last step with a prompt took
    async_scheduling: bool = True  # a step may begin before the results of the last are handled
    embeds_width: int = 0  # of embeddings that prompts may have in place of token ids; 0: they may have none
    num_lanes: int = 1  # steps that have begun at once, of different sequences, each in another pipeline stage
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_model_len", "block_size", "max_num_seqs", "max_num_batched_tokens",
                     "max_num_partial_prefills", "max_long_partial_prefills"):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_blocks < 1 and self.windows:
            raise ValueError(f"num_blocks is {self.num_blocks}; {len(self.windows)} groups of caches need blocks")
        if self.max_num_sampled < self.max_num_seqs:
            raise ValueError(f"max_num_sampled {self.max_num_sampled} is below max_num_seqs {self.max_num_seqs}")
        if self.pooling not in (None, "last") and (self.chunked_prefill or self.prefix_caching):
            raise ValueError(f"pooling by {self.pooling} needs all tokens of a prompt in one step")
        if not self.chunked_prefill and self.max_num_batched_tokens < self.max_sequence_len:
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must hold the longest"
                f" sequence ({self.max_sequence_len} tokens)"
            )

    @property
    def max_sequence_len(self) -> int:
        """The tokens that one sequence can have: the context length, or what the whole cache holds if that is less."""
        sizes = self.windows, self.block_size, self.num_blocks
        return longest_held(*sizes, self.max_model_len, is_chunked=self.chunked_prefill)

    @property
    def num_states(self) -> int:
        """The slots of recurrent states; 0 for a model that has none."""
        if self.num_snapshots is None:
            return 0
        return num_slots(self.max_num_seqs, self.num_snapshots, self.num_draft_states)

    @classmethod
    def from_plan(cls, plan: EnginePlan) -> Self:
        scheduler = plan.scheduler
        return cls(
            max_model_len=plan.model.max_model_len,
            block_size=plan.cache.block_size,
            num_blocks=plan.cache.num_blocks,
            max_num_seqs=scheduler.max_num_seqs,
            max_num_batched_tokens=scheduler.max_num_batched_tokens,
            max_num_sampled=scheduler.max_num_sampled or scheduler.max_num_seqs,
            chunked_prefill=scheduler.chunked_prefill,
            max_num_partial_prefills=scheduler.max_num_partial_prefills,
            max_long_partial_prefills=scheduler.max_long_partial_prefills,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            policy=scheduler.policy,
            prefix_caching=plan.cache.prefix_caching,
            hash_algorithm=plan.cache.hash_algorithm,
            max_waiting=scheduler.max_waiting,
            windows=windows_of(plan),
            num_snapshots=plan.cache.num_snapshots,
            num_draft_states=0 if plan.speculation is None else plan.speculation.num_draft_states or 0,
            target_step_s=scheduler.target_step_s,
            late_share=scheduler.late_share,
            delay_factor=scheduler.delay_factor,
            async_scheduling=scheduler.async_scheduling,
            speculation=SpeculationCaps.of(plan.speculation),
            expert_reads=_expert_reads(plan),
            max_loras=0 if plan.adapters is None else plan.adapters.max_loras,
            max_lora_rank=0 if plan.adapters is None else plan.adapters.max_rank,
            num_swap_places=0 if plan.cache.swap is None else plan.cache.swap.num_places,
            num_state_places=0 if plan.cache.swap is None else plan.cache.swap.num_state_places,
            swap_place_bytes=0 if plan.cache.swap is None else plan.cache.swap.place_bytes,
            embeds_width=plan.model.embeds_width,
            num_lanes=num_lanes(plan),
            seed=plan.model.seed,
            pooling=None if plan.model.pooling is None else plan.model.pooling.kind,
        )


def num_lanes(plan: EnginePlan) -> int:
    """Returns how many steps begin before the first ends: one in each stage, unless drafts tie a step to what the one
    before gave, or the plan lets no step begin before that."""
    is_one = plan.speculation is not None or not plan.scheduler.async_scheduling
    return 1 if is_one else plan.parallel.pipeline


def windows_of(plan: EnginePlan) -> tuple[int | None, ...]:
    """Returns the window of each group of caches; one group with full attention if the plan describes no memory."""
    if not plan.memory:
        return (None,)
    windows = {group.group: group.window for group in plan.memory[0].kv_groups}
    return tuple(windows[number] for number in sorted(windows))


def _expert_reads(plan: EnginePlan) -> ExpertReads | None:
    """Returns what a token of the model reads of its experts; the rest of its weights is read once a step."""
    experts = plan.model.experts
    if experts is None:
        return None
    others = sum(weight.planned_bytes for weight in plan.precision.weights) - experts.size_bytes
    share = experts.bytes_per_token / max(1, experts.bytes_per_token + others)
    return ExpertReads(experts.num_experts, experts.num_chosen, share)
