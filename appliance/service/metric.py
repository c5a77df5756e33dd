"""What is known of a metric before it has a value."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`vllm_name` is None where vLLM has no such figure; `other_names` are those of other versions of vLLM.

    Every metric has the label model_name.
    """

    name: str
    kind: Kind
    help: str
    vllm_name: str | None = None
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    other_names: tuple[str, ...] = ()

    @property
    def vllm_names(self) -> tuple[str, ...]:
        own = () if self.vllm_name is None else (self.vllm_name,)
        return tuple(f"vllm:{name}" for name in own + self.other_names)
