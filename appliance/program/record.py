"""The base of operator records: their declarations, and how their slots are found."""

import functools
import operator
import re
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, Literal

import msgspec

from appliance.program.slots import Slot, Span
from appliance.program.work import Forms, OperatorWork

ActivationKind = Literal["silu", "gelu", "gelu_tanh", "relu", "relu2", "sigmoid"]
LearnedActivationKind = Literal["xielu"]
XIELU_PARAMETERS: Final = ("alpha_p", "alpha_n", "beta", "eps")
NormKind = Literal["rms", "layer"]


class Record(msgspec.Struct, frozen=True):
    """The declarations of all operators.

    matrices: the fields that name weights in their planned layout. vectors: the fields that name weights and tables
    that are always f32. Such a field may be None.
    """

    doc: ClassVar[str]
    matrices: ClassVar[tuple[str, ...]] = ()
    vectors: ClassVar[tuple[str, ...]] = ()
    touches_cache: ClassVar[bool] = False

    @classmethod
    def label(cls) -> str:
        """Returns the operator's name in snake case, as in profiles and the ABI."""
        return re.sub(r"(?<=.)(?=[A-Z])", "_", cls.__name__).lower()

    def named(self, names: tuple[str, ...]) -> Iterator[str]:
        """Returns the weights that the given fields name."""
        return (name for name in (getattr(self, each) for each in names) if name is not None)

    def slots(self) -> list[Slot]:
        """Returns every slot that the operator reads or writes."""
        always, sometimes = _slot_getters(type(self))
        return [*always(self), *(slot for slot in sometimes(self) if slot is not None)]

    def work(self, forms: Forms) -> OperatorWork:
        """Returns the operator's least work: none that counts, unless a record overrides this."""
        return OperatorWork(self.label())


@functools.cache
def _slot_getters(
    record: type[Record],
) -> tuple[Callable[[Record], Sequence[Slot]], Callable[[Record], Sequence[Slot | None]]]:
    """Returns two getters of a record's slots: for those that are always set, and for those that may be None."""
    kinds = typing.get_type_hints(record)
    paths = {Slot: "{}", Span: "{}.slot"}
    always = [paths[kind].format(name) for name, kind in kinds.items() if kind in paths]
    slots = _getter([name for name, kind in kinds.items() if kind == Slot | None])
    spans = _getter([name for name, kind in kinds.items() if kind == Span | None])
    lists = _getter([name for name, kind in kinds.items() if kind == tuple[Slot, ...]])
    return _getter(always), lambda record: [
        *slots(record),
        *(span and span.slot for span in spans(record)),
        *(slot for each in lists(record) for slot in each),
    ]


def _getter(paths: list[str]) -> Callable[[Record], Sequence[Any]]:
    if len(paths) > 1:
        return operator.attrgetter(*paths)
    get = operator.attrgetter(paths[0]) if paths else None
    return lambda record: () if get is None else (get(record),)
