"""The whole deployment, as one YAML file describes it."""

from typing import ClassVar, Literal

from appliance.catalog.degradations import DegradationKind, Strictness
from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import Name
from appliance.spec.sections.cache import CacheSection, SchedulerSection
from appliance.spec.sections.compilation import CompilationSection
from appliance.spec.sections.decoding import DecodingSection, MultimodalSection
from appliance.spec.sections.endpoints import EndpointsSection
from appliance.spec.sections.hardware import HardwareSection, ParallelismSection
from appliance.spec.sections.lora import LoraSection
from appliance.spec.sections.model import LoadingSection, ModelSection
from appliance.spec.sections.observability import (
    ObservabilitySection,
    RestartSection,
    ShutdownSection,
    SloSection,
)
from appliance.spec.sections.speculative import SpeculativeSection
from appliance.spec.sections.transfer import KvEventsSection, KvTransferSection
from appliance.spec.sections.work import BatchSection, BenchSection

API_VERSION = "appliance/v1"


class SpecHead(Section):
    """The fields that are not sections."""

    api_version: Literal["appliance/v1"] = field(REQUIRED, "Version of this format.")
    kind: Literal["Deployment"] = field(REQUIRED, "What the file describes.")
    name: Name = field(REQUIRED, "Name of the deployment.")
    include: list[str] = field(
        [],
        "Files that this one is laid over, in their order: paths from the folder of this file. Mappings are merged, "
        "lists and single values replaced. No file outside the folder of the spec is read.",
        apply="live",
    )
    description: str = field("", "For people.", apply="live")
    overrides: Literal["allowed", "none"] = field(
        "allowed", "Whether --set and APPLIANCE__SECTION__FIELD may change this file's values.", apply="live"
    )
    strictness: Strictness = field(
        "error",
        "What happens when something asked for can only be had in a lesser form: refuse it, plan the lesser form with "
        "a warning, or plan it and record it. The same for a field of a request that the server does not know: refuse "
        "the request, or leave the field out, say so in a response header, and under warn also in the log.",
        apply="live",
    )
    degradations: dict[DegradationKind, Strictness] = field(
        {},
        "For single kinds of lesser forms, what holds in place of strictness: {context: error, ignored_field: allow}.",
        apply="live",
    )


class DeploymentSpec(SpecHead):
    """The deployment as the user wrote it; it may say `auto`. Sections that are None were not written and are off."""

    doc: ClassVar[str] = "One deployment: a model, the machine it runs on, and how it is served."

    model: ModelSection = field(REQUIRED, "The checkpoint.")
    loading: LoadingSection = field(LoadingSection, "How files are fetched and read.")
    hardware: HardwareSection = field(HardwareSection, "The machine.")
    parallelism: ParallelismSection = field(ParallelismSection, "How the model is spread.")
    cache: CacheSection = field(CacheSection, "The KV cache.")
    scheduler: SchedulerSection = field(SchedulerSection, "What a step runs.")
    compilation: CompilationSection = field(CompilationSection, "Graphs and compilation.")
    lora: LoraSection | None = field(None, "Adapters.")
    speculative: SpeculativeSection | None = field(None, "Tokens proposed ahead.")
    decoding: DecodingSection = field(DecodingSection, "Constraints, parsers and sampling defaults.")
    multimodal: MultimodalSection | None = field(None, "Media in prompts.", built=False)
    kv_transfer: KvTransferSection | None = field(None, "KV between engines.", built=False)
    kv_events: KvEventsSection | None = field(None, "News of blocks.", built=False)
    endpoints: EndpointsSection = field(EndpointsSection, "The HTTP face.")
    observability: ObservabilitySection = field(ObservabilitySection, "Logs, metrics, traces.")
    slo: SloSection = field(SloSection, "Promised latencies.", apply="live")
    restart: RestartSection = field(RestartSection, "When the engine dies.", apply="live")
    shutdown: ShutdownSection = field(ShutdownSection, "How it ends.", apply="live")
    batch: BatchSection = field(BatchSection, "Batch runs.", apply="live")
    bench: BenchSection = field(BenchSection, "Benchmarks.", apply="live")
