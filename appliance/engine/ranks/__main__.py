"""The process of one rank beside the engine's own: `python -m appliance.engine.ranks SOCKET ALIVE`."""

import faulthandler
import signal
import sys
from multiprocessing.connection import Connection

from appliance.base.errors import ApplianceError
from appliance.base.log import configure, logger
from appliance.engine.backend import load_share
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.ranks.messages import (
    ENCODE,
    TO_RANK,
    Close,
    CopyBlocks,
    DropAdapter,
    FromRank,
    Load,
    Loaded,
    Loading,
    Prefault,
    PutAdapter,
    RankEnded,
    RunStep,
    ToRank,
)
from appliance.engine.ranks.rank_process import end_with_leader
from appliance.engine.ranks.share import Parts, Share, own_changes
from appliance.kernels.errors import StepError
from appliance.kernels.interface import Adapters, Executable, Lazy
from appliance.kernels.ranks import RankError

_log = logger("engine")


class Follower:
    """Runs what its leader says, in order. It decides nothing."""

    def __init__(self, executable: Executable, parts: Parts, share: Share) -> None:
        self._executable, self._parts, self._share = executable, parts, share

    def handle(self, message: ToRank) -> bool:
        """Returns False for the last message."""
        match message:
            case RunStep(arrays):
                self._run(arrays)
            case CopyBlocks(pairs):
                self._executable.copy_blocks(pairs)
            case Prefault(block) if isinstance(self._executable, Lazy):
                self._executable.prefault(block)
            case PutAdapter(slot) if isinstance(self._executable, Adapters):
                self._executable.put_adapter(slot, own_changes(message.unpacked(), self._parts))
            case DropAdapter(slot) if isinstance(self._executable, Adapters):
                self._executable.drop_adapter(slot)
            case Close():
                return False
        return True

    def _run(self, arrays: dict[str, tuple[str, tuple[int, ...], int]]) -> None:
        try:
            self._executable.run(self._share.steps.get(arrays))
        except StepError:
            self._share.ranks.meet()  # the leader refuses it too, and waits before it tells of another


def main() -> int:
    end_with_leader(int(sys.argv[2]))
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the leader says when
    connection = Connection(int(sys.argv[1]))

    def say(answer: FromRank) -> None:
        connection.send_bytes(ENCODE(answer))

    try:
        first = TO_RANK.decode(connection.recv_bytes())
        assert isinstance(first, Load), "a rank is told first what to load"
        configure(first.plan.serving.logs.level, config_file=first.plan.serving.logs.config_file)
        config = SchedulerConfig.from_plan(first.plan)
        share = Share.of(first.plan, config, first.rank, first.memory)
        loaded = load_share(first.plan, config, share.ranks, lambda *phase: say(Loading(*phase)))
        executable = loaded.executable
        follower = Follower(executable, loaded.parts, share)
        say(Loaded(dict(executable.memory_bytes)))
        while follower.handle(TO_RANK.decode(connection.recv_bytes())):
            pass
    except EOFError:  # the leader is gone
        return 0
    except RankError as error:  # another rank is to blame, and says so itself
        say(RankEnded(str(error)))
        return 1
    except Exception as error:  # noqa: BLE001 - whatever ends a rank, its leader is told why
        _log.exception("a rank ends")
        reason = str(error) if isinstance(error, ApplianceError) else f"{type(error).__name__}: {error}"
        say(RankEnded(reason, (error.hint or "") if isinstance(error, ApplianceError) else ""))
        return 1
    executable.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
