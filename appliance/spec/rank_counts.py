"""How many of a deployment's replicas and ranks one machine has."""

from appliance.spec.sections.hardware import ParallelismSection


def replicas_here(spec: ParallelismSection) -> int:
    """Returns how many of the deployment's replicas this machine has."""
    if spec.data_parallel_rank is not None:
        return 1
    return spec.data_parallel_size_local or spec.data


def ranks_here(spec: ParallelismSection) -> int:
    """Returns how many ranks of all replicas this machine has."""
    return -(-spec.tensor * spec.pipeline * replicas_here(spec) // spec.nnodes)
