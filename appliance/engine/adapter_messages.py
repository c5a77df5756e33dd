"""The messages between an engine and its clients that are about the set of adapters."""

import msgspec

from appliance.plan.types import AdapterPlan


class AdapterSet(msgspec.Struct, frozen=True, kw_only=True, tag="adapters"):
    """The adapters that are to be served from now on, all of them. The engine reads and checks those that are new
    beside its steps, and then changes to the whole set, or to nothing of it.

    Open requests keep the adapters that they have. The answer is a UtilityResult with an AdaptersServed, or with why
    the set before goes on.
    """

    call_id: str
    adapters: tuple[AdapterPlan, ...] = ()


class AdapterReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine found of an adapter that it serves.

    num_modules: the weights that it is for. effective_modules: of these, the ones to which it adds something.
    is_verified: a token showed that the model's logits differ with it. note: why not.
    """

    adapter: AdapterPlan
    num_modules: int
    effective_modules: int
    is_verified: bool
    note: str = ""


class AdaptersServed(msgspec.Struct, frozen=True, tag="adapters_served"):
    """The adapters that the engine serves now. Sent to each client, and again whenever they change."""

    adapters: tuple[AdapterReport, ...] = ()


class AdapterStats(msgspec.Struct, frozen=True, kw_only=True):
    """running, waiting: names of adapters that sequences have. num_writes: of slots, since the start."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    num_writes: int = 0
