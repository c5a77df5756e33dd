"""Replicas of a real engine under streams while their deployment changes: live, and rolling from engine to engine.

    python -m tests.e2e.replicas_through_changes --changes 20 --streams 200

prints what became of the streams and the applies, and ends with 1 when a stream broke, an answer differed from a quiet
server's, or a change was carried out in another way.
"""

import argparse
import asyncio
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.test_streams_through_changes import LIVE, Deployment, Load, deployed_in, through

REPLICAS = ("parallelism.data=2", "hardware.num_threads=1")
RESTART = ("scheduler.max_num_seqs=16", "scheduler.max_num_seqs=24", "cache.num_blocks=2048", "cache.block_size=32")


@dataclass(frozen=True, slots=True)
class Report:
    """how: of each apply, in order. differing: prompts whose answers are not those of a quiet server."""

    how: list[str]
    wanted: list[str]
    num_streams: int
    errors: list[str]
    differing: list[str]

    @property
    def is_good(self) -> bool:
        return self.how == self.wanted and not self.errors and not self.differing


async def changed_under_streams(deployment: Deployment, num_changes: int, num_streams: int) -> Report:
    """Makes live changes and changes of the engines in turn, each in the middle of streams."""
    first = deployment.apply(*REPLICAS)
    quiet = Load(first.current.url, num_streams=50)
    await quiet.run()
    changes = [_change(number) for number in range(num_changes)]
    load, results = await through(deployment, first.current.url, changes, num_streams)
    return Report(
        how=[result.how for result in results],
        wanted=["rolling" if number % 2 else "reload" for number in range(num_changes)],
        num_streams=load.num_begun,
        errors=[*quiet.errors, *load.errors],
        differing=[prompt for prompt, texts in load.texts.items() if texts != quiet.texts[prompt]],
    )


def _change(number: int) -> tuple[str, ...]:
    """The overrides of the apply: what was changed last of the engines stays when something live changes."""
    engine = (RESTART[(number - 1) // 2 % len(RESTART)],) if number else ()
    live = LIVE[number // 2 % len(LIVE)]
    return *REPLICAS, *engine, live


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--streams", type=int, default=200)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, deployed_in(Path(folder)) as deployment:
        report = asyncio.run(changed_under_streams(deployment, given.changes, given.streams))
    print(
        f"{report.num_streams} streams, {len(report.errors)} broken, {len(report.differing)} prompts with other answers"
    )
    print(f"applies: {', '.join(report.how)}")
    for line in (*report.errors[:5], *report.differing[:5]):
        print(f"  {line}")
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
