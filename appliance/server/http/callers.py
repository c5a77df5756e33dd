"""The caller: the holder of an API key, its rules, and what it has used."""

import math
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Protocol

from appliance.base.hashing import sha256_hex
from appliance.engine.messages import ErrorKind
from appliance.engine.time_messages import RequestTimes
from appliance.plan.serving_types import KeyPlan
from appliance.requests.errors import ApiError
from appliance.service.errors import RequestFailedError
from appliance.service.metrics import ServiceMetrics
from appliance.service.policy import Meter, OpenPolicy
from appliance.service.requests import TextOutput, TextRequest

_OPEN = OpenPolicy()


class Level(Protocol):
    """The used part of an allowance at a time. While it is entered, no other process changes it."""

    used: float
    at: float

    def __enter__(self) -> "Level": ...

    def __exit__(self, *_: object) -> None: ...


class Account(Protocol):
    """The use of one key, in this process or in several."""

    @property
    def requests(self) -> Level: ...

    @property
    def tokens(self) -> Level: ...

    def try_open(self, most: int | None) -> bool:
        """Counts one more open group of requests, unless there are `most` already."""

    def close(self) -> None:
        """One of them has ended."""


@dataclass(slots=True)
class OwnLevel:
    used: float = 0.0
    at: float = 0.0

    def __enter__(self) -> "OwnLevel":
        return self

    def __exit__(self, *_: object) -> None:
        """Releases nothing: no other process has this level."""


@dataclass(slots=True)
class OwnAccount:
    """The account of a key in a server of one process."""

    requests: Level = field(default_factory=OwnLevel)
    tokens: Level = field(default_factory=OwnLevel)
    num_open: int = 0

    def try_open(self, most: int | None) -> bool:
        if most is not None and self.num_open >= most:
            return False
        self.num_open += 1
        return True

    def close(self) -> None:
        self.num_open -= 1


class Bucket:
    """A minute's allowance that fills steadily. What runs may overdraw it; then nothing starts until it is paid."""

    def __init__(self, per_minute: int, clock: Callable[[], float], level: Level | None = None) -> None:
        """`clock` is the same for all who share the level."""
        self._per_minute = per_minute
        self._clock = clock
        self._level = OwnLevel() if level is None else level

    def wait_s(self, least: float) -> float:
        """Seconds until there are `least`; 0 now."""
        with self._level as level:
            return self._wait_s(level, least)

    def take(self, amount: float) -> None:
        with self._level as level:
            self._fill(level)
            level.used += amount

    def try_take(self, amount: float) -> float:
        """Takes it if it is there and gives 0; else takes nothing and gives the seconds until it is."""
        with self._level as level:
            wait = self._wait_s(level, amount)
            if not wait:
                level.used += amount
            return wait

    def _wait_s(self, level: Level, least: float) -> float:
        self._fill(level)
        return max(0.0, (level.used + least - self._per_minute) * 60 / self._per_minute)

    def _fill(self, level: Level) -> None:
        now = self._clock()
        level.used = max(0.0, level.used - (now - level.at) * self._per_minute / 60)
        level.at = now


class Caller:
    """One key's holder. Lives as long as its key and rules stay the same."""

    def __init__(
        self,
        name: str,
        rules: KeyPlan,
        metrics: ServiceMetrics,
        clock: Callable[[], float] = time.monotonic,
        account: Account | None = None,
    ) -> None:
        self.name = name
        self.rules = rules
        self.account: Account = OwnAccount() if account is None else account
        self._metrics = metrics
        requests, tokens = rules.requests_per_minute, rules.tokens_per_minute
        self._requests = Bucket(requests, clock, self.account.requests) if requests else None
        self._tokens = Bucket(tokens, clock, self.account.tokens) if tokens else None

    def count_request(self) -> None:
        """Raises ApiError 429 when the minute's requests are used up."""
        wait = self._requests.try_take(1.0) if self._requests else 0.0
        if wait:
            raise self._refused("requests", f"{self.rules.requests_per_minute} requests a minute", wait)
        self._metrics.key_used(self.name, "requests", 1)

    def check_model(self, name: str) -> None:
        """Raises ApiError 403 for a model that the key may not use."""
        if not self.may_use(name):
            self._metrics.key_refused(self.name, "model")
            message = f"the key {self.name!r} may not use this model"
            raise ApiError(403, message, param="model", code="model_not_allowed")

    def may_use(self, model: str) -> bool:
        return self.rules.models is None or model in self.rules.models

    def open(self) -> None:
        """Counts a group of requests until `account.close`.

        Raises ApiError 429 when as many are open as may be, or the minute's tokens are used up.
        """
        wait = self._tokens.wait_s(1.0) if self._tokens else 0.0
        if wait:
            raise self._refused("tokens", f"{self.rules.tokens_per_minute} tokens a minute", wait)
        most = self.rules.max_concurrency
        if not self.account.try_open(most):
            raise self._refused("concurrency", f"{most} requests at once", 1.0)

    def charge(self, kind: str, num_tokens: int) -> None:
        if self._tokens:
            self._tokens.take(num_tokens)
        self._metrics.key_used(self.name, kind, num_tokens)

    def _refused(self, reason: str, what: str, wait_s: float) -> ApiError:
        self._metrics.key_refused(self.name, reason)
        message = f"the key {self.name!r} may have {what}; try again later"
        headers = {"Retry-After": str(math.ceil(wait_s))}
        return ApiError(429, message, code="rate_limit_exceeded", headers=headers)


CALLER: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Of the request that is handled; None where no keys are planned. Tasks that a handler starts inherit it."""


def owner() -> str:
    """To whom what is stored now belongs: the key's name, or "" where there are no keys."""
    caller = CALLER.get()
    return caller.name if caller is not None else ""


class CallerPolicy:
    """The rules of the caller's key, for every request that reaches the engine client."""

    def __init__(self, *, isolates_caches: bool) -> None:
        self._isolates_caches = isolates_caches

    def admit(self, requests: Sequence[TextRequest]) -> tuple[Sequence[TextRequest], Meter]:
        """Raises RequestFailedError, overloaded."""
        caller = CALLER.get()
        if caller is None:
            return requests, _OPEN
        try:
            caller.open()
        except ApiError as refusal:
            wait_s = int(refusal.headers["Retry-After"])
            raise RequestFailedError(
                ErrorKind.OVERLOADED, refusal.message, code=refusal.code, retry_after_s=wait_s
            ) from refusal
        caller.charge("prompt_tokens", sum(len(request.prompt_token_ids) for request in requests))
        return [self._ruled(request, caller) for request in requests], _CallerMeter(caller)

    def _ruled(self, request: TextRequest, caller: Caller) -> TextRequest:
        salt, priority = request.cache_salt, request.priority
        if self._isolates_caches:
            salt = sha256_hex(f"{caller.name}\n{salt or ''}".encode("utf-8", "surrogatepass"))
        if caller.rules.priority:
            priority = caller.rules.priority + max(0, priority)  # a request may wait longer than its key, never less
        return replace(request, cache_salt=salt, priority=priority)


class _CallerMeter:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    def add(self, output: TextOutput) -> None:
        self._caller.charge("generation_tokens", len(output.token_ids))

    def timed(self, times: RequestTimes | None) -> None:
        """A key pays for tokens, not for time."""

    def close(self, reason: str) -> None:
        self._caller.account.close()


def check_unlimited() -> None:
    """Raises ApiError 403 for a key that may use some models only, where a route changes what everybody uses."""
    caller = CALLER.get()
    if caller is not None and caller.rules.models is not None:
        raise ApiError(403, f"the key {caller.name!r} is limited to its models", code="not_allowed")
