"""The verbs about ranks of other machines."""

from pathlib import Path
from typing import Annotated

import typer

from appliance.cli.verb import group, verb

Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="parallelism.master_addr and master_port.")]
Rank = Annotated[list[int], typer.Option("--rank", metavar="N", help="A rank that this machine has; may be repeated.")]
NodeRank = Annotated[
    int | None, typer.Option("--node-rank", metavar="N", help="The number of this machine, in place of its ranks.")
]
RanksPerNode = Annotated[int, typer.Option("--ranks-per-node", metavar="N", help="Ranks of a machine: --node-rank.")]
Model = Annotated[
    Path | None, typer.Option("--model", metavar="PATH", help="The checkpoint, where it lies elsewhere here.")
]
Engine = Annotated[str, typer.Option("--engine", metavar="HASH", help="Serve only the plan with this engine hash.")]
Once = Annotated[bool, typer.Option("--once", help="End with the leader, in place of waiting for its next start.")]


def add(app: typer.Typer) -> None:
    ranks = group("ranks", "Ranks of a deployment that are on other machines than its server.")
    app.add_typer(ranks, name="ranks")

    @verb(ranks, "join", "appliance ranks join 10.0.0.1:29501 --rank 2 --rank 3")
    def join(
        address: Address,
        rank: Rank = [],  # noqa: B006 - typer copies it
        node_rank: NodeRank = None,
        ranks_per_node: RanksPerNode = 1,
        model: Model = None,
        engine: Engine = "",
        once: Once = False,
    ) -> int:
        """Run ranks of a deployment whose server is on another machine (parallelism.nnodes)."""
        from appliance.cli import ranks

        wanted = ranks.ranks_of_node(rank, node_rank, ranks_per_node)
        return ranks.run_join(address, wanted, model, engine, once=once)
