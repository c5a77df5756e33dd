"""The request fields of structured output, in the words of OpenAI and of vLLM."""

from typing import Any, Literal

import msgspec

Schema = dict[str, Any] | bool


class JsonSchemaFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    description: str | None = None
    schema: Schema | None = None
    strict: bool | None = None  # every schema is enforced as it stands


class StructureFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A tagged part in the older form of structural tags."""

    begin: str
    schema: Schema
    end: str


class TagContent(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    json_schema: Schema


class TagFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    begin: str
    content: TagContent
    end: str
    type: Literal["tag"] = "tag"


class TriggeredTags(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The newer form of structural tags, of which this one kind is built."""

    type: Literal["triggered_tags"]
    triggers: list[str]
    tags: list[TagFields]
    at_least_one: bool = False
    stop_after_first: bool = False


class StructuralTag(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either `structures` with `triggers`, or `format`."""

    type: Literal["structural_tag"] = "structural_tag"
    structures: list[StructureFields] | None = None
    triggers: list[str] | None = None
    format: TriggeredTags | None = None


class ResponseFormat(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[StructureFields] | None = None
    triggers: list[str] | None = None
    format: TriggeredTags | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's newer form of the guided_ fields."""

    json: Schema | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: StructuralTag | str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    disable_fallback: bool | None = None  # there is one back-end
