"""A rank beside its leader: it loads its share, and runs what it is told."""

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

from appliance import __version__
from appliance.base.errors import ApplianceError
from appliance.base.log import configure, logger
from appliance.engine.backend import PlanMismatchError, load_share
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.extension import Extension, load_extension
from appliance.engine.ranks.messages import (
    ENCODE,
    TO_RANK,
    Beat,
    CallExtension,
    CaptureGraph,
    Close,
    CommitWeights,
    CopyBlocks,
    DropAdapter,
    DropWeights,
    FromRank,
    Load,
    Loaded,
    Loading,
    Move,
    MoveExperts,
    Prefault,
    PutAdapter,
    PutToSleep,
    RankCalled,
    RankDone,
    RankEnded,
    RankMoved,
    RunArrays,
    RunStep,
    StageWeights,
    TimeOperators,
    ToRank,
    WakeUp,
)
from appliance.engine.ranks.rank_weights import RankWeights
from appliance.engine.ranks.share import Share
from appliance.engine.ranks.stage_links import FollowerLink
from appliance.engine.ranks.stage_share import StageShare
from appliance.engine.ranks.step_memory import StepMemory
from appliance.engine.ranks.step_messages import step_of
from appliance.engine.sleep import Sleeper, SleepingExecutable
from appliance.engine.sleep_messages import SleepTag
from appliance.engine.swap_memory import SwapMemory
from appliance.engine.weight_staging import OwnStaging
from appliance.kernels.errors import ExecutableError, StepError
from appliance.kernels.interface import Graphed, Lazy, Profiled, Screened, StepInputs
from appliance.kernels.linked_ranks import LinkedRanks
from appliance.kernels.ranks import RankError
from appliance.plan.types import EnginePlan

_log = logger("engine")


class Follower:
    """Runs what its leader says, in order. It decides nothing."""

    def __init__(
        self,
        own: StageShare,
        share: Share,
        swap: SwapMemory | None,
        say: Callable[[FromRank], None],
        extension: Extension | None = None,
        sleeper: Sleeper | None = None,
        weights: RankWeights | None = None,
    ) -> None:
        self._extension, self._sleeper, self._weights = extension, sleeper, weights
        self._own, self._executable, self._share, self._swap, self._say = own, own.executable, share, swap, say

    def handle(self, message: ToRank) -> bool:
        """Returns False for the last message."""
        match message:
            case RunStep(number, arrays):
                assert isinstance(self._share.steps, StepMemory), "the ranks share memory"
                self._run(number, self._share.steps.get(arrays))
            case RunArrays(number):
                self._run(number, step_of(message))
            case TimeOperators(is_on) if isinstance(self._executable, Profiled):
                count = len(self._executable.operator_work())
                self._executable.time_operators(np.zeros(count) if is_on else None)
            case CaptureGraph() if isinstance(self._executable, Graphed):
                self._executable.capture_next()
            case CopyBlocks(pairs):
                self._executable.copy_blocks(pairs)
            case Prefault(block) if isinstance(self._executable, Lazy):
                self._executable.prefault(block)
            case PutAdapter(slot):
                self._own.put_adapter(slot, message.unpacked())
            case DropAdapter(slot):
                self._own.drop_adapter(slot)
            case MoveExperts(mixture, placed) if self._own.experts is not None:
                self._own.experts.move(mixture, tuple(placed))
            case Move(stores, loads) if self._swap is not None:
                self._say(RankMoved(sorted(self._swap.move(stores, loads).unloaded)))
            case CallExtension(call) if self._extension is not None:
                self._say(RankCalled(self._extension.call(call)))
            case PutToSleep(level) if self._sleeper is not None:
                self._sleeper.sleep(level)
                self._say(RankDone())
            case WakeUp(part) if self._sleeper is not None:
                self._say(RankDone(_failure(self._sleeper, part)))
            case StageWeights() | CommitWeights() | DropWeights() if self._weights is not None:
                self._weights.handle(message)
            case Close():
                return False
        return True

    def _run(self, number: int, inputs: StepInputs) -> None:
        try:
            self._own.run(number, inputs)
        except StepError:
            if self._share.stage is not None and self._share.stage.number > 0:
                raise  # no later stage hears of a step that the first one refuses
            self._share.ranks.meet()  # the leader refuses it too, and waits before it tells of another


def _failure(sleeper: Sleeper, part: SleepTag) -> str | None:
    """Wakes a part. Returns why that could not be; None if it is awake."""
    try:
        sleeper.wake(part)
    except RankError:
        raise
    except ExecutableError as error:
        return str(error)
    return None


class Link:
    """The rank's end of the connection. Several threads may say something."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self.num_handled = 0

    def say(self, answer: FromRank) -> None:
        with self._lock:
            self._connection.send_bytes(ENCODE(answer))

    def hear(self) -> ToRank:
        """Waits for a message. Raises EOFError if the leader is gone."""
        message: ToRank = TO_RANK.decode(self._connection.recv_bytes())
        return message

    def beat(self, ranks: LinkedRanks) -> None:
        """Has the leader know from now on that this rank is there, and how far it is."""

        def run() -> None:
            while True:
                try:
                    self.say(Beat(self.num_handled, ranks.num_waits))
                except OSError:
                    return
                time.sleep(ranks.beat_interval_s)

        threading.Thread(target=run, name="beat", daemon=True).start()


def serve(link: Link, first: Load) -> int:
    """Loads a rank's share and runs what it is told. Returns the exit code of its process: 0 after the last message, or
    when the leader is gone."""
    try:
        _serve(link, first)
    except EOFError:  # the leader is gone
        return 0
    except RankError as error:  # another rank is to blame
        link.say(RankEnded(str(error), blames_other=True))
        return 1
    except Exception as error:  # noqa: BLE001 - whatever ends a rank, its leader is told why
        _log.exception("a rank ends")
        reason = str(error) if isinstance(error, ApplianceError) else f"{type(error).__name__}: {error}"
        link.say(RankEnded(reason, (error.hint or "") if isinstance(error, ApplianceError) else ""))
        return 1
    return 0


def _check_version(plan: EnginePlan) -> None:
    """Raises PlanMismatchError if another version made the plan: ranks of two versions may compute different things."""
    if plan.appliance_version != __version__:
        message = f"the plan is of version {plan.appliance_version}, and this rank is {__version__}"
        raise PlanMismatchError(message, hint="start all ranks with one version, and plan again: appliance plan")


def _serve(link: Link, first: Load) -> None:
    _check_version(first.plan)
    configure(first.plan.serving.logs.level, config_file=first.plan.serving.logs.config_file)
    config = SchedulerConfig.from_plan(first.plan)
    share = Share.told(first, config)
    if isinstance(share.ranks, LinkedRanks):
        link.beat(share.ranks)
        share = share if share.stage is None else share._replace(mail=FollowerLink(link.say))
    loaded = load_share(first.plan, config, share, lambda *phase: link.say(Loading(*phase)))
    places = (config.num_swap_places, config.num_state_places)
    swap = SwapMemory(loaded.executable, *places) if config.num_swap_places else None
    own = StageShare(loaded.executable, share, loaded.stage, loaded.parts, loaded.experts)
    extension = load_extension(first.plan, loaded.executable, first.rank)
    sleeper = None
    if first.plan.model.sleep_mode:
        assert loaded.read_weights is not None, "a planned model has a checkpoint"
        sleeper = SleepingExecutable(loaded.executable, loaded.read_weights, loaded.experts, swap)
    weights = None
    if (source := loaded.source) is not None:
        weights = RankWeights(OwnStaging(loaded.executable, source), source.replaced, link.say)
    follower = Follower(own, share, swap, link.say, extension, sleeper, weights)
    few_logits = loaded.executable.few_logits if isinstance(loaded.executable, Screened) else None
    link.say(Loaded(dict(loaded.executable.memory_bytes), few_logits))
    while follower.handle(link.hear()):
        link.num_handled += 1
    if weights is not None:
        weights.close()
    loaded.executable.close()
