"""A rank's share of the memory of its group, or its end of the links between them."""

from collections.abc import Mapping
from typing import NamedTuple, Self

from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.mail import Handing, Mail, StageMail
from appliance.engine.ranks.messages import Load
from appliance.engine.ranks.step_memory import StepMemory, step_bytes
from appliance.kernels.linked_ranks import LinkedRanks, Rendezvous
from appliance.kernels.lockstep import Lockstep
from appliance.kernels.ranks import PAGE_BYTES, PlaceInMemory, Ranks, RankView, SharedMemory, pages
from appliance.plan.types import EnginePlan
from appliance.program.shard_layout import Shard
from appliance.program.stages import Stage, num_places

Parts = Mapping[str, tuple[int, int]]  # the rows of logical weights that a rank has, where it has some only, or none
_REGION = 1 << 36  # of addresses in the memory, most of which nobody touches: for each stage, and for each mail


class Share(NamedTuple):
    """ranks: of the stage, for the kernel set. steps: the arrays of steps; None where they come as messages. stage and
    mail: None if there is one stage. keeps: the model keeps rows for a drafting head. lockstep: this rank's place among
    those of all replicas, which have the experts among them; None: this one has all."""

    ranks: RankView
    steps: StepMemory | None
    stage: Stage | None = None
    mail: Handing | None = None
    keeps: bool = False
    lockstep: Lockstep | None = None

    @property
    def number(self) -> int:
        """The rank's number among those of all stages."""
        return self.ranks.rank + (0 if self.stage is None else self.stage.number * self.ranks.num_ranks)

    @property
    def is_leader(self) -> bool:
        return self.number == 0

    @classmethod
    def of(cls, plan: EnginePlan, config: SchedulerConfig, rank: int, memory: SharedMemory | int) -> Self:
        """memory: that of the group, or its descriptor. Raises OSError if the system refuses it."""
        memory = SharedMemory(memory) if isinstance(memory, int) else memory
        parallel = plan.parallel
        number, own = divmod(rank, parallel.tensor)
        places = num_places(parallel.pipeline)
        size, first = step_bytes(config, places), parallel.pipeline * pages(PAGE_BYTES)
        place = PlaceInMemory(number, parallel.pipeline, _REGION * (1 + number))
        ranks = Ranks(memory, own, parallel.tensor, parallel.distributed_timeout_s, place)
        steps = StepMemory(memory, first, size, places)
        if parallel.pipeline == 1:
            return cls(ranks, steps)

        def mail(at: int, most_rows: int) -> Mail:
            return Mail(memory, _REGION * (1 + parallel.pipeline + at), places, most_rows, ranks)

        tokens, last, sampled = config.max_num_batched_tokens, parallel.pipeline - 1, config.max_num_sampled
        kept = None if plan.model.kept_layers is None else mail(last + 1, max(tokens, sampled))
        behind = tuple(mail(stage, tokens) for stage in range(last))
        mails = StageMail(number, parallel.tensor, behind, mail(last, sampled), kept)
        return cls(ranks, steps, Stage(number, parallel.layers), mails, kept is not None)

    @classmethod
    def linked(cls, plan: EnginePlan, rank: int, rendezvous: Rendezvous) -> Self:
        """Returns that of a rank that shares no memory; how its stage hands on is told to it with its connection."""
        parallel = plan.parallel
        number, own = divmod(rank, parallel.tensor)
        ranks = LinkedRanks(rendezvous, own, parallel.tensor, parallel.distributed_timeout_s, stage=number)
        if parallel.pipeline == 1:
            return cls(ranks, None)
        return cls(ranks, None, Stage(number, parallel.layers), keeps=plan.model.kept_layers is not None)

    @classmethod
    def told(cls, first: Load, config: SchedulerConfig) -> Self:
        """Returns that of a rank that was told what to load. Raises OSError like `of`."""
        if first.memory is not None:
            share = cls.of(first.plan, config, first.rank, first.memory)
            return share if first.lockstep is None else share._replace(lockstep=_joined(first, *first.lockstep))
        if first.file is not None:
            return cls.linked(first.plan, first.rank, Rendezvous.of_one_machine(first.file))
        return cls.linked(first.plan, first.rank, Rendezvous(first.host, address=first.store))


def _joined(first: Load, memory: int, replica: int) -> Lockstep:
    """Returns the place of a rank that is told what to load. memory: the descriptor of that of all replicas."""
    parallel = first.plan.parallel
    sizes = (parallel.replicas, parallel.distributed_timeout_s)
    return Lockstep(SharedMemory(memory), replica, *sizes, shard=Shard(first.rank, parallel.tensor))
