"""How the ranks of a program on torch exchange columns: by gloo on torch's CPU device, by NCCL or RCCL on GPUs.

On a GPU nothing waits here: a collective is work of the device's stream as any other, which a graph can hold.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import distributed

from appliance.kernels.execution import Execution
from appliance.kernels.gpu.device import Device
from appliance.kernels.gpu.sizes import step_limits
from appliance.kernels.linked_ranks import LinkedRanks, Rendezvous
from appliance.kernels.ranks import RankError
from appliance.program.device_memory import gather_bytes
from appliance.program.operators import StepProgram

_c10d: Any = distributed  # torch's types leave out what is used of it


class Group(Protocol):
    """What is used of a ProcessGroupGloo or a ProcessGroupNCCL."""

    def _allgather_base(self, received: torch.Tensor, sent: torch.Tensor) -> distributed.Work: ...

    def allreduce(self, tensors: list[torch.Tensor]) -> distributed.Work: ...


class Collectives:
    """One rank's part in the collectives of a program. All ranks call the same ones in the same order."""

    def __init__(self, ranks: LinkedRanks, device: Device, size_bytes: int) -> None:
        """size_bytes: of the memory for the columns of all ranks (program.device_memory.gather_bytes)."""
        self._ranks, self._device = ranks, device
        self._memory = device.zeros(size_bytes, dtype=torch.uint8)
        self._group: Group | None = None

    @property
    def size_bytes(self) -> int:
        return self._memory.nbytes

    def gather(self, columns: torch.Tensor, starts: Sequence[int]) -> None:
        """Fills columns [rows, width] that other ranks have computed: rank r those from starts[r] on.

        Every rank sends as many columns as the one that has most. Raises RankError if a rank is gone or late.
        """
        rows, cut = len(columns), list(pairwise(starts))
        if not rows:
            return
        widest = max(stop - start for start, stop in cut)
        begin, end = cut[self._ranks.rank]
        sent, received = self._places(rows * widest, columns.dtype)
        sent.view(rows, widest)[:, : end - begin].copy_(columns[:, begin:end])
        self._wait(lambda group: group._allgather_base(received, sent))
        parts = received.view(len(cut), rows, widest)
        if all(stop - start == widest for start, stop in cut):
            columns.view(rows, len(cut), widest).copy_(parts.transpose(0, 1))
            return
        for (start, stop), part in zip(cut, parts, strict=True):
            columns[:, start:stop].copy_(part[:, : stop - start])

    def unite(self, outputs: torch.Tensor) -> None:
        """Fills outputs [rows, width], contiguous, of which each number is zero in all ranks but one.

        Bits are added as integers, so that a number stays what it is. Raises RankError if a rank is gone or late.
        """
        if len(outputs):
            self._wait(lambda group: group.allreduce([outputs.view(torch.int32)]))

    def close(self) -> None:
        """Leaves the group."""
        self._group = None

    def _places(self, numbers: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns room for the columns of one rank, and for those of all."""
        room = self._memory.view(dtype)
        return room[:numbers], room[numbers : (1 + self._ranks.num_ranks) * numbers]

    def _wait(self, begin: Callable[[Group], distributed.Work]) -> None:
        self._ranks.num_waits += 1
        try:
            if self._group is None:  # ranks meet at their first collective: by then all of them have loaded
                self._group = self._joined()
            begin(self._group).wait()
        except RuntimeError as error:
            self._ranks.fail()
            reason = str(error).partition("\n")[0]
            raise RankError(f"a rank is gone, or did not come within {self._ranks.timeout_s:g} s ({reason})") from error

    def _joined(self) -> Group:
        """Returns the group, once all ranks are there."""
        ranks, timeout = self._ranks, timedelta(seconds=self._ranks.timeout_s)
        store = _c10d.PrefixStore(f"stage {ranks.stage}", _store(ranks, timeout))
        if not self._device.is_gpu:
            options = _c10d.ProcessGroupGloo._Options()
            options._timeout, options._threads = timeout, 1
            options._devices = [_c10d.ProcessGroupGloo.create_device(hostname=ranks.rendezvous.host)]
            group: Group = _c10d.ProcessGroupGloo(store, ranks.rank, ranks.num_ranks, options)
            return group
        chosen = _c10d.ProcessGroupNCCL.Options()
        chosen._timeout = timeout
        by_nccl: Group = _c10d.ProcessGroupNCCL(store, ranks.rank, ranks.num_ranks, chosen)
        return by_nccl


def collectives_of(
    program: StepProgram, execution: Execution, dtype: torch.dtype, device: Device
) -> Collectives | None:
    """Returns what the rank of an execution exchanges columns by; None where there is one rank."""
    ranks = execution.ranks
    if ranks is None or ranks.num_ranks == 1:
        return None
    assert isinstance(ranks, LinkedRanks), "ranks of a set on torch share no memory"
    return Collectives(ranks, device, gather_bytes(program, step_limits(execution.limits), dtype.itemsize))


def _store(ranks: LinkedRanks, timeout: timedelta) -> object:
    """Returns where the ranks tell one another their addresses."""
    where: Rendezvous = ranks.rendezvous
    if where.file is not None:
        return _c10d.FileStore(f"/proc/self/fd/{where.file}", ranks.num_ranks)
    assert where.address is not None, "ranks of several machines have an address"
    host, port = where.address
    is_leader = where.listener is not None
    return _c10d.TCPStore(
        host, port, ranks.num_ranks, is_leader, timeout, wait_for_workers=False, master_listen_fd=where.listener
    )
