"""The same client over an engine in this process, for batch, bench and the Python API."""

from collections.abc import Callable

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import BootPhase, EngineEvent, Fatal
from appliance.plan.types import EnginePlan
from appliance.service.client import AdmissionLimits, EngineClient
from appliance.service.engine_metrics import EngineMetrics
from appliance.service.intake import OPEN, failed
from appliance.service.text_side import TextSide
from appliance.service.thread_link import ThreadLink


class InProcessEngine:
    """Loads the planned model here; `client` takes requests until `close`. Must be made on the client's event loop."""

    def __init__(
        self,
        plan: EnginePlan,
        text: TextSide,
        *,
        announce: Callable[[BootPhase], None] = lambda phase: None,
        metrics: EngineMetrics | None = None,
    ) -> None:
        """Blocks while the model loads. Raises what InprocEngine.from_plan raises. Nothing is refused for waiting."""
        self.client = EngineClient(AdmissionLimits(plan.scheduler.max_num_seqs, None), metrics)
        self.client.use_text(text)
        self._link = ThreadLink(InprocEngine.from_plan(plan, announce), self._on_event)
        self.client.attach(self._link)
        self.client.intake = OPEN

    def close(self) -> None:
        """Ends the engine; what is open fails."""
        self.client.intake = failed("the engine was closed")
        self.client.fail_all("the engine was closed")
        self._link.close()

    def _on_event(self, event: EngineEvent) -> None:
        if isinstance(event, Fatal):
            self.client.intake = failed(event.error)
            self.client.fail_all(event.error)
        else:
            self.client.on_event(event)
