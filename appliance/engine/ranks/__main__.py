"""The process of one rank beside the engine's own: `python -m appliance.engine.ranks SOCKET ALIVE LEADER`."""

import faulthandler
import signal
import sys
from multiprocessing.connection import Connection

from appliance.base.prctl import end_with_parent
from appliance.engine.ranks.follower import Link, serve
from appliance.engine.ranks.messages import Load
from appliance.engine.ranks.rank_process import end_with_leader


def main() -> int:
    end_with_leader(int(sys.argv[2]))
    leader = int(sys.argv[3])  # 0: it may go on after the thread that started it
    if leader and not end_with_parent(leader):
        return 0
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the leader says when
    link = Link(Connection(int(sys.argv[1])))
    try:
        first = link.hear()
    except EOFError:  # the leader is gone
        return 0
    assert isinstance(first, Load), "a rank is told first what to load"
    return serve(link, first)


if __name__ == "__main__":
    sys.exit(main())
