"""What a deployment keeps on disk. One folder a deployment, one numbered folder in it for each generation.

state/<name>/lock            held by the command that changes the deployment
state/<name>/current.json    CurrentState: which generation runs, and as which process
state/<name>/generations/<number>/  plan.json, spec.yaml, applied.json (where that was, and the overrides), spec.json
                             (with every default, secrets masked), result.json, server.log, and what the server writes
"""

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from appliance.base.disk import remedy
from appliance.base.environ import STATE_VARIABLE
from appliance.base.errors import ApplianceError, ApplyError
from appliance.deploy.process import ProcessId
from appliance.plan.types import EnginePlan

KEPT_GENERATIONS = 20
LOG_NAME = "server.log"
KILLED = "the command that applied it was killed"
_NOT_YET, _NO_MORE = ".making-", ".removing-"  # begin the names of folders that are no generations


class CurrentState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    generation: int
    process: ProcessId
    started_at: float  # seconds since the epoch
    url: str  # of the server, without a path
    served_name: str
    needs_key: bool
    engine_sha256: str
    serving_sha256: str
    adapters_sha256: str = ""
    spec_file: str
    appliance_version: str
    home: int = 0  # the generation whose folder its process writes to; 0 is `generation`
    pending: int = 0  # the generation that a reload was about to bring; the server may follow either
    leftover: tuple[ProcessId, ...] = ()  # that an apply started or replaced, and that must not stay

    @property
    def home_generation(self) -> int:
        """A reload makes a generation without a process of its own."""
        return self.home or self.generation


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """How a generation came to serve, or why it did not. Written once."""

    outcome: Literal["serving", "failed"]
    how: str  # start, reload, beside, in place, foreground, taken up
    cause: str
    at: float  # seconds since the epoch
    seconds: float
    reason: str = ""  # of a failure
    replaced: int = 0  # the generation that served before
    rollback_of: int = 0


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The file that a generation was applied from, and what --set said."""

    spec_file: str = ""
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    number: int
    folder: Path

    @property
    def plan_path(self) -> Path:
        return self.folder / "plan.json"

    @property
    def log_path(self) -> Path:
        return self.folder / LOG_NAME

    @property
    def spec_text(self) -> str:
        return (self.folder / "spec.yaml").read_text(encoding="utf-8")

    @property
    def overrides(self) -> list[str]:
        """What --set said; may hold secrets, as the spec's text may."""
        return list(self._applied().overrides)

    @property
    def spec_file(self) -> str:
        """Where the spec was when it was applied; "" where an older version did not keep it."""
        return self._applied().spec_file

    def _applied(self) -> "Applied":
        """What was applied; an older version kept the overrides alone."""
        try:
            return msgspec.json.decode((self.folder / "applied.json").read_bytes(), type=Applied)
        except (FileNotFoundError, msgspec.DecodeError):
            pass
        try:
            older = msgspec.json.decode((self.folder / "overrides.json").read_bytes(), type=tuple[str, ...])
            return Applied(overrides=older)
        except (FileNotFoundError, msgspec.DecodeError):
            return Applied()

    def spec_data(self) -> dict[str, Any] | None:
        """The spec with every default, secrets masked; None where an older version kept none."""
        try:
            return msgspec.json.decode((self.folder / "spec.json").read_bytes(), type=dict[str, Any])
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def result(self) -> Result | None:
        """Reads how the apply ended; None while it runs, and when it was killed."""
        try:
            return msgspec.json.decode((self.folder / "result.json").read_bytes(), type=Result)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def write_result(self, result: Result) -> None:
        write_atomically(self.folder / "result.json", msgspec.json.encode(result))

    def plan(self) -> EnginePlan:
        return msgspec.json.decode(self.plan_path.read_bytes(), type=EnginePlan)


class DeploymentState:
    """The folder of one deployment. Only the holder of its lock may change it."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.folder = root.absolute() / name  # a server does not run in our folder
        self.lock_path = self.folder / "lock"
        self._current = self.folder / "current.json"
        self._generations = self.folder / "generations"

    def create(self) -> None:
        """Private to the user: a plan holds hashes of keys. Raises ApplyError."""
        with written_to(self.folder):
            self._generations.mkdir(parents=True, exist_ok=True)
            self.folder.chmod(0o700)

    def sweep(self) -> None:
        """Removes what a command that was killed had half written, and says of its generation that it failed.

        Raises ApplyError.
        """
        with written_to(self.folder):
            self._sweep()

    def _sweep(self) -> None:
        for stale in (*self.folder.glob(".*.json.*"), *self._generations.glob("*/.*.*.*")):
            stale.unlink()
        for stale in (*self._generations.glob(f"{_NOT_YET}*"), *self._generations.glob(f"{_NO_MORE}*")):
            shutil.rmtree(stale)
        current = self.current()
        for generation in self.generations():
            is_current = current is not None and generation.number == current.generation
            if generation.result() is None and not is_current:
                generation.write_result(_interrupted(generation))

    def current(self) -> CurrentState | None:
        """Reads which process runs; None when nothing was started, or its record cannot be read."""
        try:
            return msgspec.json.decode(self._current.read_bytes(), type=CurrentState)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise ApplianceError(
                f"the state of {self.name} cannot be read: {error}",
                hint=f"end its server by hand, then remove {self._current}",
            ) from None

    def write_current(self, current: CurrentState) -> None:
        """Raises ApplyError; what was written before is there then."""
        with written_to(self._current):
            write_atomically(self._current, msgspec.json.encode(current))

    def clear_current(self) -> None:
        self._current.unlink(missing_ok=True)

    def generation(self, number: int) -> Generation:
        return Generation(number, self._generations / f"{number:04d}")

    def generations(self) -> list[Generation]:
        """Lists the generations that are kept, the oldest first."""
        return [self.generation(number) for number in self._numbers()]

    def new_generation(
        self,
        plan: EnginePlan,
        spec_text: str,
        spec_data: Mapping[str, Any],
        overrides: Sequence[str] = (),
        spec_file: str = "",
    ) -> Generation:
        """The next number, whole or not at all. Older ones than KEPT_GENERATIONS are removed, never the one that runs.

        Raises ApplyError.
        """
        numbers = self._numbers()
        made = self.generation(max(numbers, default=0) + 1)
        making = made.folder.with_name(_NOT_YET + made.folder.name)
        contents = {
            "spec.yaml": spec_text.encode(),
            "spec.json": msgspec.json.encode(spec_data),
            "applied.json": msgspec.json.encode(Applied(spec_file=spec_file, overrides=tuple(overrides))),
            "plan.json": msgspec.json.format(msgspec.json.encode(plan)),
        }
        with written_to(made.folder):
            try:
                making.mkdir()
                for name, data in contents.items():
                    write_atomically(making / name, data)
                making.rename(made.folder)
            except OSError:
                shutil.rmtree(making, ignore_errors=True)  # what cannot be removed, the next sweep tries again
                raise
        self._remove(numbers[: -KEPT_GENERATIONS + 1])
        return made

    def _remove(self, numbers: Sequence[int]) -> None:
        running = self.current()
        for number in numbers:
            if running is None or number not in (running.generation, running.home_generation):
                folder = self.generation(number).folder
                shutil.rmtree(folder.rename(folder.with_name(_NO_MORE + folder.name)))

    def _numbers(self) -> list[int]:
        if not self._generations.is_dir():
            return []
        return sorted(int(each.name) for each in self._generations.iterdir() if each.name.isdigit())


def deployment_names(root: Path) -> list[str]:
    """Lists the names of all deployments that were started on this machine and not taken down."""
    if not root.is_dir():
        return []
    return sorted(each.name for each in root.iterdir() if (each / "current.json").is_file())


def _interrupted(generation: Generation) -> Result:
    at = generation.folder.stat().st_mtime
    return Result(outcome="failed", how="", cause="", at=at, seconds=0.0, reason=KILLED)


@contextmanager
def written_to(path: Path) -> Iterator[None]:
    """Raises ApplyError where the disk is full, or writing is not permitted."""
    try:
        yield
    except OSError as error:
        message = f"the state in {path} cannot be written: {error.strerror or error}"
        raise ApplyError(message, hint=remedy(error, STATE_VARIABLE)) from error


def write_atomically(path: Path, data: bytes) -> None:
    """The file holds the old bytes or the new ones, whatever happens in between."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    try:
        with beside.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
