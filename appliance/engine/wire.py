"""Engine messages on a ZeroMQ socket.

The engine binds a ROUTER; each client connects a DEALER. A message is one frame of msgpack: an EngineMessage to the
engine, an EngineEvent back. A routing id identifies a client: request ids are unique per client, and when a client goes
away, its requests are aborted.
"""

import msgspec

from appliance.engine.messages import EngineEvent, EngineMessage

MAX_MESSAGE_BYTES = 64 << 20  # a peer that sends more is disconnected
QUEUED_EVENTS = 100_000  # a client with more unread events counts as gone

_encoder = msgspec.msgpack.Encoder()
_messages: msgspec.msgpack.Decoder[EngineMessage] = msgspec.msgpack.Decoder(EngineMessage)
_events: msgspec.msgpack.Decoder[EngineEvent] = msgspec.msgpack.Decoder(EngineEvent)


def encode(value: EngineMessage | EngineEvent) -> bytes:
    return _encoder.encode(value)


def decode_message(frame: bytes) -> EngineMessage:
    """Decodes a message to the engine. Raises msgspec.DecodeError (ValidationError is one kind of it)."""
    return _messages.decode(frame)


def decode_event(frame: bytes) -> EngineEvent:
    """Decodes an event of the engine. Raises msgspec.DecodeError."""
    return _events.decode(frame)


def raw(value: object) -> msgspec.Raw:
    """Encodes a value for UtilityResult.value or Ready.report."""
    return msgspec.Raw(_encoder.encode(value))
