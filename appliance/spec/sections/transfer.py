"""`kv_transfer` and `kv_events`: KV cache transfer between engines, and block events."""

from typing import Any, ClassVar, Literal

from appliance.spec.fields import Section, field
from appliance.spec.scalars import DottedPath, NonNegativeInt, Port, PositiveFloat, PositiveInt, Text


class KvTransferSection(Section):
    """KV cache that moves between engines."""

    doc: ClassVar[str] = "KV cache that moves between engines: disaggregated prefill, shared stores."

    kv_connector: Text | None = field(None, "Connector by name.")
    kv_connector_module_path: DottedPath | None = field(None, "Module of a connector of your own.")
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = field(
        None, "What this engine does; needed with a connector."
    )
    kv_rank: NonNegativeInt | None = field(None, "Rank of this engine.")
    kv_parallel_size: PositiveInt = field(1, "Engines of the group.")
    kv_ip: Text = field("127.0.0.1", "Address of the connector.")
    kv_port: Port = field(14579, "Port of the connector.")
    kv_buffer_device: Literal["cuda", "cpu"] = field("cuda", "Where the buffer is.")
    kv_buffer_size: PositiveFloat = field(1e9, "Bytes of the buffer.")
    engine_id: Text | None = field(None, "Name of this engine.")
    kv_connector_extra_config: dict[str, Any] = field({}, "Options of the connector.")


class KvEventsSection(Section):
    """Published block events."""

    doc: ClassVar[str] = "Blocks stored and removed, published for routers."

    enable_kv_cache_events: bool = field(False, "Publish events.")
    publisher: Literal["null", "zmq"] = field("null", "How.")
    endpoint: Text = field("tcp://*:5557", "Where.")
    replay_endpoint: Text | None = field(None, "Where missed events can be asked for.")
    buffer_steps: PositiveInt = field(10000, "Steps kept for replay.")
    hwm: NonNegativeInt = field(100000, "Messages held for a slow reader.")
    max_queue_size: PositiveInt = field(100000, "Events held before publishing.")
    topic: str = field("", "Topic of the messages.")
