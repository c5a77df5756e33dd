"""Engine messages on a ZeroMQ socket.

The engine binds a ROUTER; each client connects a DEALER. A message is one frame of msgpack: an EngineMessage to the
engine, an EngineEvent back. A client's routing id names it: its request ids are its own, and when it goes its requests
are aborted.
"""

import msgspec

from appliance.engine.messages import EngineEvent, EngineMessage

MAX_MESSAGE_BYTES = 64 << 20  # a peer that sends more is cut off
QUEUED_EVENTS = 100_000  # for a client that does not read; then it counts as gone

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
_events: msgspec.msgpack.Decoder[EngineEvent] = msgspec.msgpack.Decoder(EngineEvent)


def encode(value: EngineMessage | EngineEvent) -> bytes:
    return _encoder.encode(value)


def decode_message(frame: bytes) -> EngineMessage:
    """Raises msgspec.DecodeError (of which ValidationError is a kind)."""
    return _messages.decode(frame)


def decode_event(frame: bytes) -> EngineEvent:
    """Raises msgspec.DecodeError."""
    return _events.decode(frame)


def raw(value: object) -> msgspec.Raw:
    """A value for UtilityResult.value or Ready.report."""
    return msgspec.Raw(_encoder.encode(value))
