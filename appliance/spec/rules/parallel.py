"""Rules of `parallelism`."""

from appliance.spec.deployment import DeploymentSpec
from appliance.spec.rules.finding import Finding, Findings

_LEAST_WAIT_S = 0.1


def one_process_is_one_rank(spec: DeploymentSpec) -> Findings:
    ranks = spec.parallelism.tensor * spec.parallelism.pipeline
    if spec.parallelism.backend == "uni" and ranks > 1:
        yield Finding(
            path="parallelism.backend",
            value="uni",
            message=f"uni runs one rank, and tensor x pipeline is {ranks}",
            allowed="auto, mp or ray",
            hint="remove parallelism.backend",
        )


def hybrid_balancing_is_complete(spec: DeploymentSpec) -> Findings:
    parallel = spec.parallelism
    if not parallel.data_parallel_hybrid_lb:
        return
    path = "parallelism.data_parallel_hybrid_lb"
    if parallel.data < 2:
        yield Finding(path=path, value=True, message="one replica has nothing to balance", hint="write data: 2 or more")
    if parallel.data_parallel_start_rank is None:
        hint = "write data_parallel_start_rank: the first rank of this node"
        yield Finding(path=path, value=True, message="hybrid balancing needs data_parallel_start_rank", hint=hint)


def ranks_are_in_range(spec: DeploymentSpec) -> Findings:
    parallel = spec.parallelism
    for name in ("data_parallel_rank", "data_parallel_start_rank"):
        rank = getattr(parallel, name)
        if rank is not None and rank >= parallel.data:
            yield Finding(
                path=f"parallelism.{name}",
                value=rank,
                message=f"rank {rank} of {parallel.data} replicas: ranks count from 0",
                allowed=f"0 to {parallel.data - 1}",
                hint="write parallelism.data: the number of replicas of all nodes",
            )
    local = parallel.data_parallel_size_local
    if local is not None and local > parallel.data:
        yield Finding(
            path="parallelism.data_parallel_size_local",
            value=local,
            message=f"{local} replicas here of {parallel.data} in all",
            hint="write parallelism.data: the number of replicas of all nodes",
        )


def ranks_wait(spec: DeploymentSpec) -> Findings:
    for name in ("distributed_timeout", "join_timeout"):
        timeout = getattr(spec.parallelism, name)
        if timeout < _LEAST_WAIT_S:
            yield Finding(
                path=f"parallelism.{name}",
                value=timeout,
                message="ranks that are only busy would be taken for lost",
                allowed=f"at least {_LEAST_WAIT_S * 1000:g}ms",
                hint=f"remove parallelism.{name}, or write more",
            )


def experts_need_ranks(spec: DeploymentSpec) -> Findings:
    parallel = spec.parallelism
    if parallel.expert and parallel.tensor * parallel.data == 1:
        yield Finding(
            path="parallelism.expert",
            value=True,
            message="experts are spread over tensor x data ranks, and there is one",
            hint="write more tensor or data ranks, or remove parallelism.expert",
        )
    spreads = parallel.expert and parallel.data > 1
    if parallel.expert_placement_strategy != "linear" and parallel.tensor == 1 and not spreads:
        yield Finding(
            path="parallelism.expert_placement_strategy",
            value=parallel.expert_placement_strategy,
            message="experts are placed over the ranks of a replica, or over replicas, and there is one of those",
            hint="write more tensor ranks, or data with expert: true, or remove expert_placement_strategy",
        )
    if parallel.enable_eplb and not parallel.expert:
        yield Finding(
            path="parallelism.enable_eplb",
            value=True,
            message="experts are balanced only where whole experts are spread",
            hint="write parallelism.expert: true, or remove enable_eplb",
        )
    if parallel.enable_eplb and parallel.expert_placement_strategy != "linear":
        yield Finding(
            path="parallelism.expert_placement_strategy",
            value=parallel.expert_placement_strategy,
            message="the balancer places experts by their load",
            hint="remove expert_placement_strategy, or enable_eplb",
        )
    if parallel.num_redundant_experts and not parallel.enable_eplb:
        yield Finding(
            path="parallelism.num_redundant_experts",
            value=parallel.num_redundant_experts,
            message="redundant experts are placed by the balancer, which is off",
            hint="write parallelism.enable_eplb: true, or remove num_redundant_experts",
        )


def stages_have_layers(spec: DeploymentSpec) -> Findings:
    partition, stages = spec.parallelism.layer_partition, spec.parallelism.pipeline
    if partition and len(partition) != stages:
        yield Finding(
            path="parallelism.layer_partition",
            value=partition,
            message=f"{len(partition)} entries for {stages} pipeline stages",
            hint="write one number of layers a stage",
        )
