"""The class of the operator's own whose methods can be called on every rank: `parallelism.worker_extension_cls`."""

import inspect
from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec

from appliance.base.bounded import BoundedCalls
from appliance.base.log import logger
from appliance.base.plugin_types import Worker
from appliance.base.plugins import PluginError, load_plugin
from appliance.engine.extension_messages import ExtensionAnswer, ExtensionCall
from appliance.engine.messages import UtilityRequest, UtilityResult
from appliance.engine.wire import raw
from appliance.kernels.interface import Executable
from appliance.plan.types import EnginePlan

FIELD: Final = "parallelism.worker_extension_cls"
MOST_ANSWER_BYTES: Final = 16 << 20  # it goes through the engine's socket, which tokens use too

_log = logger("engine")
_ENCODE: Final = msgspec.msgpack.Encoder().encode


class CallsRanks(Protocol):
    """An executable of several ranks."""

    def call_extensions(self, call: ExtensionCall) -> list[ExtensionAnswer]:
        """Returns what each rank answered, in order. Raises RankFailedError if one does not come back."""


class Extension:
    """The object of one rank. A call that fails or is late costs nothing but itself."""

    def __init__(self, path: str, worker: Worker) -> None:
        """Imports the class and constructs it. Raises PluginError."""
        self._path, self._calls = path, BoundedCalls(0.0)
        found = load_plugin(path, FIELD)
        if not isinstance(found, type):
            raise PluginError(f"{FIELD}: {path} is no class")
        try:
            self._made: Any = found()
            self._made.worker = worker
        except Exception as error:
            message = f"{FIELD}: {path}() raised {type(error).__name__}: {error}"
            raise PluginError(message, hint="it is constructed without arguments, and gets `worker` then") from error

    def call(self, call: ExtensionCall) -> ExtensionAnswer:
        """Calls a method for at most the time that the call gives it. Raises nothing."""
        name = f"{self._path}.{call.method}"
        method = None if call.method.startswith("_") else getattr(self._made, call.method, None)
        if not callable(method):
            return ExtensionAnswer(error=f"{self._path} has no method {call.method}", is_unknown=True)
        if inspect.iscoroutinefunction(method):
            return ExtensionAnswer(error=f"{name} is async, and methods are called between steps, without a loop")
        try:
            value = self._calls.run(name, lambda: _plain(method(*call.args, **call.kwargs)), more_s=call.timeout_s)
        except Exception as error:  # noqa: BLE001 - whatever the operator's code raises, its caller is told
            _log.warning("a method of the worker extension failed", exc_info=True)
            return ExtensionAnswer(error=f"{type(error).__name__}: {error}")
        return ExtensionAnswer(value)


def load_extension(plan: EnginePlan, executable: Executable, rank: int = 0) -> Extension | None:
    """Returns what the plan has a rank load beside its share of the model. Raises PluginError."""
    path = plan.parallel.worker_extension_cls
    return None if path is None else Extension(path, Worker(rank, plan.parallel.num_ranks, executable))


AskRanks = Callable[[ExtensionCall], list[ExtensionAnswer]]


def extension_calls(plan: EnginePlan, executable: Executable | CallsRanks) -> AskRanks | None:
    """Returns how all ranks of an engine are asked; None if the plan names no class. Raises PluginError."""
    if plan.parallel.worker_extension_cls is None:
        return None
    if plan.parallel.num_ranks > 1:
        group: Any = executable  # the backend of several ranks is a group
        asked: AskRanks = group.call_extensions
        return asked
    alone: Any = executable
    own = load_extension(plan, alone)
    assert own is not None, "the plan names a class"
    return lambda call: [own.call(call)]


def called(ask: AskRanks | None, message: UtilityRequest) -> UtilityResult:
    """Answers a client's call, between two steps. Raises RankFailedError if a rank does not come back."""
    if ask is None or message.call is None:
        return UtilityResult(call_id=message.call_id, error=f"{FIELD} names no class")
    return UtilityResult(call_id=message.call_id, value=raw(ask(message.call)))


def _plain(value: object) -> object:
    """Returns a value as JSON has it; what JSON cannot say becomes text. Raises ValueError for what is too large."""
    try:
        packed = _ENCODE(value)
        plain: object = msgspec.msgpack.decode(packed)
        msgspec.json.encode(plain)
    except (TypeError, ValueError, OverflowError, RecursionError):
        plain, packed = str(value), str(value).encode()
    if len(packed) > MOST_ANSWER_BYTES:
        raise ValueError(f"it returned {len(packed):,} bytes; at most {MOST_ANSWER_BYTES:,} can be sent")
    return plain
