"""What an engine does while no request is open: it makes memory resident, and captures graphs."""

from appliance.engine.core.block_pool import BlockPool
from appliance.engine.graph_messages import GraphStats
from appliance.kernels.interface import Executable, Graphed, Lazy


class IdleWork:
    """The work that an executable leaves for idle moments, in small parts."""

    def __init__(self, executable: Executable, pool: BlockPool, prefault_blocks: int = 0) -> None:
        """prefault_blocks: how many blocks of the cache are made resident before they are used."""
        self._lazy = executable if isinstance(executable, Lazy) else None
        self._graphed = executable if isinstance(executable, Graphed) else None
        self._pool = pool
        self._prefault_blocks = prefault_blocks

    def do_next(self) -> bool:
        """Makes one more block resident, or captures one more graph. Returns False when all is done."""
        if self._lazy is not None and (block := self._pool.touch_next(self._prefault_blocks)) is not None:
            self._lazy.prefault(block)
            return True
        return self._graphed is not None and self._graphed.capture_next()

    @property
    def graphs(self) -> GraphStats | None:
        """The graphs by now; None if none are planned."""
        report = None if self._graphed is None else self._graphed.graphs
        if report is None or not report.num_planned:
            return None
        return GraphStats(
            num_captured=report.num_captured, num_planned=report.num_planned, seconds=round(report.seconds, 6)
        )
