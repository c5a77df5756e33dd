"""The declaration of spec fields: one helper that keeps a field's documentation with it."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

ApplyClass = Literal["live", "adapters", "drain", "restart"]

NOW = "0.1"  # the default of a field's `since`
REQUIRED: Any = PydanticUndefined


class Section(BaseModel):
    """A mapping of the spec. Unknown keys are errors and no value is coerced; the parser removes `x-` keys before."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True, protected_namespaces=())
    doc: ClassVar[str] = ""
    short_form: ClassVar[str] = ""  # the pattern of a text that may stand for the section; empty: none may


class FieldDoc:
    """The documentation of one field, besides its type.

    `built_values` are the only values that this version can run; for a list, the only items.
    """

    __slots__ = ("allowed", "apply", "auto", "built", "built_values", "default", "doc", "secret", "since", "vllm")

    def __init__(
        self,
        doc: str,
        *,
        default: Any,
        apply: ApplyClass,
        auto: str = "",
        allowed: str = "",
        built: bool = True,
        built_values: tuple[Any, ...] | None = None,
        since: str = NOW,
        secret: bool = False,
        vllm: str = "",
    ) -> None:
        self.doc = doc
        self.default = default
        self.apply: ApplyClass = apply
        self.auto = auto
        self.allowed = allowed
        self.built = built
        self.built_values = built_values
        self.since = since
        self.secret = secret
        self.vllm = vllm

    def can_run(self, value: Any) -> bool:
        """Returns whether this version can run `value`. It can always run the default."""
        if value == self.default and type(value) is type(self.default):
            return True
        if self.built_values is not None:
            return all(item in self.built_values for item in (value if isinstance(value, list) else [value]))
        return self.built


def field(
    default: Any,
    doc: str,
    *,
    apply: ApplyClass = "restart",
    auto: str = "",
    allowed: str = "",
    built: bool = True,
    built_values: tuple[Any, ...] | None = None,
    since: str = NOW,
    secret: bool = False,
    vllm: str = "",
) -> Any:
    """Declares a field of a Section.

    `auto` says what the value `auto` becomes; `allowed` says in words what a type cannot; `vllm` is the name of the
    vLLM argument if it differs from the field's. A mutable default is created for each model: pydantic copies lists and
    dicts, and a Section class is constructed. `built=False`: the field is parsed and checked, but the planner refuses
    it.
    """
    if isinstance(default, type) and issubclass(default, Section):
        factory: Callable[[], Any] | None = default.model_construct  # a call would build a validator of its own
        shown: Any = {}
    else:
        factory, shown = None, default
    known = FieldDoc(
        doc,
        default=shown,
        apply=apply,
        auto=auto,
        allowed=allowed,
        built=built,
        built_values=built_values,
        since=since,
        secret=secret,
        vllm=vllm,
    )
    if factory is not None:
        made: FieldInfo = Field(default_factory=factory, description=doc)
    else:
        made = Field(default=default, description=doc)
    made.metadata.append(known)
    return made


def field_doc(info: FieldInfo) -> FieldDoc:
    """Returns the FieldDoc of a field declared with `field`. Raises LookupError for any other field."""
    for item in info.metadata:
        if isinstance(item, FieldDoc):
            return item
    raise LookupError("a field of the spec is declared without field()")
