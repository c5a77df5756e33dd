"""How a plan spreads a model over ranks, stages and replicas."""

import msgspec

from appliance.program.placement import ExpertPlacing, ExpertStrategy


class ParallelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """data: replicas of the deployment, on all machines. replicas: those of them that one server has, whose numbers
    begin at first_replica."""

    tensor: int
    pipeline: int
    data: int
    expert: bool
    expert_placement_strategy: ExpertStrategy = "linear"  # of tensor ranks, which have whole experts
    enable_eplb: bool = False  # experts move by their load
    num_redundant_experts: int = 0  # copies in each mixture
    eplb_window_size: int = 0  # steps
    eplb_step_interval: int = 0
    eplb_log_balancedness: bool = False
    backend: str = "uni"  # how ranks are started; uni: there is one
    distributed_timeout_s: float = 60.0
    replicas: int = 1
    first_replica: int = 0
    nnodes: int = 1  # machines that have the ranks of a replica
    master_addr: str = ""  # where the leader of ranks of several machines listens; empty for one machine
    master_port: int = 0
    join_timeout_s: float = 0.0  # for which it waits for the others
    worker_extension_cls: str | None = None  # a class of the operator's own, whose methods every rank can be asked for
    layers: tuple[int, ...] = ()  # of each pipeline stage; empty: there is one stage

    @property
    def placing(self) -> ExpertPlacing:
        """Where ranks have the experts of each mixture."""
        return ExpertPlacing(self.expert_placement_strategy, self.num_redundant_experts, self.enable_eplb)

    @property
    def spreads_experts(self) -> bool:
        """Says whether replicas have the experts of mixtures among them, and run their steps together."""
        return self.expert and self.data > 1

    @property
    def num_ranks(self) -> int:
        """The ranks of one engine: stage s has those from s * tensor on."""
        return self.tensor * self.pipeline
