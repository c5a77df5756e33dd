"""`appliance shard`: writes the weights of a spec by rank, for `load_format: sharded_state`."""

import json
import time

from appliance.base.errors import ExitCode
from appliance.base.units import format_size
from appliance.checkpoint.sharded_state import ShardedIndex
from appliance.cli.arguments.machine import ShardArguments
from appliance.cli.ending import ended_in_order
from appliance.cli.progress import ProgressBar
from appliance.cli.spec_target import spec_target
from appliance.loading.shard_writing import write_by_rank
from appliance.plan.prepare import prepare


def run(arguments: ShardArguments) -> int:
    """Plans the spec, and writes what each of its ranks would load. Raises ApplianceError."""
    path, overrides = spec_target(arguments.spec, arguments.overrides)
    started = time.monotonic()
    with ended_in_order(), ProgressBar() as bar:
        prepared = prepare(path, overrides, arguments.hardware, to_run=False, progress=bar)
        shown = _Shown(bar, prepared.plan.parallel.num_ranks)
        index = write_by_rank(prepared.plan, prepared.model, arguments.folder, shown)
    _report(arguments, index, time.monotonic() - started)
    return ExitCode.OK


class _Shown:
    """Shows how far the ranks are that are written."""

    def __init__(self, bar: ProgressBar, num_ranks: int) -> None:
        self._bar, self._num_ranks = bar, num_ranks
        self._rank, self._done = -1, 0

    def __call__(self, rank: int, done: int, total: int) -> None:
        if rank != self._rank:
            self._rank, self._done = rank, 0
            self._bar.start(f"rank {rank} of {self._num_ranks}: {format_size(total)}", total, "bytes")
        self._bar.advance(done - self._done)
        self._done = done


def _report(arguments: ShardArguments, index: ShardedIndex, seconds: float) -> None:
    sizes = [sum(rank.files.values()) for rank in index.ranks]
    figures = {
        "path": str(arguments.folder.resolve()),
        "tensor": index.shards.tensor,
        "pipeline": index.shards.pipeline,
        "size_bytes": sizes,
        "seconds": round(seconds, 2),
    }
    if arguments.as_json:
        print(json.dumps(figures, indent=2))
        return
    print(f"path   {figures['path']}")
    print(f"ranks  {len(sizes)} ({index.shards}), {format_size(sum(sizes))} in {seconds:.1f} s")
    print("serve it with model.source: that path, loading.load_format: sharded_state")
