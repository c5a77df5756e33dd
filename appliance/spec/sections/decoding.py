"""`decoding` and `multimodal`: what constrains and parses the output, and what media go in."""

import re
from typing import Any, ClassVar, Literal

from pydantic import model_validator

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import (
    Auto,
    DottedPath,
    Duration,
    HttpUrl,
    NonNegativeInt,
    PositiveInt,
    ServerLabel,
    Size,
    Text,
)

Modality = Literal["image", "video", "audio"]


class ToolServerSection(Section):
    """One server of tools."""

    doc: ClassVar[str] = "One server of tools by the Model Context Protocol; see docs/guides/tools.md."
    short_form: ClassVar[str] = r"^[^\s/]+:[0-9]{1,5}$"

    name: ServerLabel = field(REQUIRED, "What requests send as `server_label`.", apply="live")
    command: list[Text] | None = field(
        None, "A program that speaks over its standard input and output, and its arguments.", apply="live"
    )
    url: HttpUrl | None = field(None, "The address of one that runs elsewhere, in the place of command.", apply="live")
    env: dict[str, str] = field(
        {}, "Variables of the command; of ours it has PATH, HOME and the like alone.", apply="live"
    )
    headers: dict[str, str] = field({}, "Headers of each message to the url.", apply="live")
    allowed_tools: list[Text] | None = field(None, "Tools that may be used. Default: all.", apply="live")
    timeout: Duration = field(30.0, "Longest start, list or call.", apply="live")
    max_result_bytes: Size = field(256 * 2**10, "Largest result of a call; more is an error.", apply="live")
    max_calls: PositiveInt = field(16, "Most calls of one response.", apply="live")

    @model_validator(mode="before")
    @classmethod
    def _from_short_form(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        if not re.fullmatch(cls.short_form, value):
            raise ValueError("a tool server is host:port or a section; the tools that vLLM calls demo are not here")
        return {"name": value, "url": f"http://{value}/mcp"}


class DecodingSection(Section):
    """Constraints, parsers and defaults."""

    doc: ClassVar[str] = "Structured output, tool calls, reasoning, and sampling defaults."

    structured_output: Literal["auto", "none", "guidance", "xgrammar", "outlines", "lm-format-enforcer"] = field(
        "auto",
        "Back-end of structured output.",
        auto="guidance, loaded at the first request that asks for it; a back-end that is named is loaded at the start",
        built_values=("auto", "none", "guidance"),
        apply="live",
        vllm="guided_decoding_backend",
    )
    disable_fallback: bool = field(
        False,
        "No second back-end when the first fails. With one back-end there is none.",
        apply="live",
        vllm="guided_decoding_disable_fallback",
    )
    disable_any_whitespace: bool = field(
        False,
        "No free whitespace in structured JSON; guidance and xgrammar only.",
        apply="live",
        vllm="guided_decoding_disable_any_whitespace",
    )
    disable_additional_properties: Auto[bool] = field(
        "auto",
        "Objects of schemas that list properties and do not say additionalProperties allow no others; guidance only.",
        auto="true, as schemas are read by xgrammar, outlines and llama.cpp",
        apply="live",
        vllm="guided_decoding_disable_additional_properties",
    )
    tool_parser: Auto[Text] = field(
        "auto",
        "Parser of tool calls: hermes, mistral, llama3_json, pythonic ...",
        auto="from the chat template, else none",
        apply="live",
        vllm="tool_call_parser",
    )
    enable_auto_tool_choice: Auto[bool] = field(
        "auto",
        "Let the model decide to call tools; needs a tool parser.",
        auto="true where there is a tool parser",
        apply="live",
    )
    exclude_tools_when_tool_choice_none: bool = field(
        False, "Leave tools out of the prompt when the request forbids calls.", apply="live"
    )
    tool_parser_plugin: DottedPath | None = field(
        None, "A tool format of your own, as package.module:NAME; see docs/guides/tools.md.", apply="live"
    )
    trust_plugins: bool = field(
        False,
        "Run code of your own inside: every field that takes a dotted path needs it. See docs/guides/plugins.md.",
        apply="live",
    )
    tool_server: list[ToolServerSection] = field(
        [], "Tool servers that responses may use; host:port is short for one at http://host:port/mcp.", apply="live"
    )
    reasoning_parser: Auto[Text] = field(
        "auto",
        "Parser of reasoning: deepseek_r1, qwen3, granite, mistral ...",
        auto="from the chat template, else none",
        apply="live",
    )
    reasoning_parser_plugin: DottedPath | None = field(
        None, "A reasoning format of your own, as package.module:NAME; see docs/guides/plugins.md.", apply="live"
    )
    generation_config: Text = field(
        "auto",
        "Where sampling defaults come from: auto, none, or a folder with generation_config.json.",
        auto="the checkpoint's generation_config.json",
        apply="live",
    )
    override_generation_config: dict[str, Any] = field(
        {}, "Sampling defaults merged over it: {temperature: 0.7, top_p: 0.8, max_new_tokens: 512}.", apply="live"
    )
    logits_processors: list[DottedPath] = field(
        [], "Functions or classes of your own that change the logits of every request, in this order."
    )
    logits_processor_pattern: Text | None = field(
        None, "Pattern of whole names of logits processors that requests may bring; needs trust_plugins. Default: none."
    )
    logits_processor_timeout: Duration = field(
        5.0, "Longest time of one call of a logits processor; its request fails then. All others wait meanwhile."
    )


class MultimodalSection(Section):
    """Images, video and audio in prompts."""

    doc: ClassVar[str] = "Images, video and audio in prompts."

    limit_mm_per_prompt: dict[Modality, NonNegativeInt] = field(
        {}, "Most items of each modality a prompt may hold: {image: 4, video: 0}.", apply="live"
    )
    media_io_kwargs: dict[Modality, dict[str, Any]] = field({}, "Options of decoding: {video: {num_frames: 40}}.")
    mm_processor_kwargs: dict[str, Any] = field({}, "Options of the model's processor: {num_crops: 4}.")
    mm_processor_cache: Size = field(
        4 * 2**30, "Memory of processed inputs, for each API process and each replica.", vllm="mm_processor_cache_gb"
    )
    disable_mm_preprocessor_cache: bool = field(False, "Keep no processed inputs.")
    interleave_mm_strings: bool = field(False, "Media stay where they are between texts.")
    skip_mm_profiling: bool = field(False, "Leave encoder memory out of the plan.")
    allowed_local_media_path: Text | None = field(
        None, "Folder from which requests may read media. Default: none.", apply="live"
    )
    image_fetch_timeout: Duration = field(5.0, "Longest fetch of an image.", apply="live")
    video_fetch_timeout: Duration = field(30.0, "Longest fetch of a video.", apply="live")
    audio_fetch_timeout: Duration = field(10.0, "Longest fetch of an audio file.", apply="live")
