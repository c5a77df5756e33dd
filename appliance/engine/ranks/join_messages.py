"""What a rank on another machine and the leader tell each other before the rank is one of the group."""

import msgspec

from appliance.engine.ranks.messages import Load


class Join(msgspec.Struct, frozen=True, tag=True):
    """The first message of a rank. engine_sha256: of the plan that it is for; empty: of any."""

    rank: int
    version: str
    machine: str
    engine_sha256: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The one who says so wants nothing to do with the other, and a new try would end alike unless is_for_now."""

    reason: str
    hint: str = ""
    is_for_now: bool = False


class Joined(msgspec.Struct, frozen=True, tag=True):
    """The rank has the weights of the plan, and begins to load."""


Greeting = Join | Joined | Refused
Welcome = Load | Refused

GREETING = msgspec.msgpack.Decoder(Greeting)
WELCOME = msgspec.msgpack.Decoder(Welcome)
