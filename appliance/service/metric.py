"""What is known of a metric before it has a value."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """`vllm_name` is None where vLLM has no such figure; `other_names` are those of other versions of vLLM.

    Every metric has the label model_name. by_engine: there is one of each replica, told apart by the label `engine`,
    its number, as in vLLM.
    """

    name: str
    kind: Kind
    help: str
    vllm_name: str | None = None
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    other_names: tuple[str, ...] = ()
    by_engine: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels besides model_name."""
        return ("engine", *self.labels) if self.by_engine else self.labels

    @property
    def vllm_names(self) -> tuple[str, ...]:
        own = () if self.vllm_name is None else (self.vllm_name,)
        return tuple(f"vllm:{name}" for name in own + self.other_names)
