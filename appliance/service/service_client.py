"""What front ends know of the engines: the client of one, or of several replicas."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from appliance.engine.adapter_messages import AdapterReport
from appliance.engine.weight_messages import WeightStats, WeightUpdate
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.policy import Meter, RequestPolicy
from appliance.service.requests import TextRequest
from appliance.service.streams import OutputStream
from appliance.service.text_side import TextSide


class ServiceClient(Protocol):
    """Admits requests and sends them to an engine: EngineClient says of each member what it does."""

    policy: RequestPolicy

    @property
    def num_open_requests(self) -> int: ...

    @property
    def num_open_sequences(self) -> int: ...

    @property
    def text(self) -> TextSide: ...

    @property
    def adapters(self) -> Mapping[str, AdapterReport]: ...

    @property
    def engines(self) -> Sequence[EngineClient]:
        """The clients of the engines that can be called. Raises RequestFailedError when there is none."""

    @property
    def numbered_engines(self) -> Mapping[int, EngineClient]:
        """The same by the numbers that metrics, status and logs give them. Raises like `engines`."""

    async def replace_weights(self, update: WeightUpdate) -> Mapping[int, WeightStats]: ...

    def use_text(self, text: TextSide) -> None: ...

    def use_limits(self, limits: AdmissionLimits) -> None: ...

    def check_admission(self) -> None: ...

    def predicted_wait_s(self) -> float: ...

    def note_shed(self) -> None: ...

    def generate(
        self, *requests: TextRequest, is_streamed: bool = True, meter: Meter | None = None
    ) -> OutputStream: ...

    async def probe(self) -> None: ...

    def fail_all(self, reason: str) -> None: ...
