"""LLM: vLLM's class for calls that return when all is answered."""

import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from appliance.engine.profile import EngineProfile
from appliance.engine.weight_messages import WeightStats
from appliance.offline import calls
from appliance.offline.arguments import EngineArgs, Overrides, prepare_spec
from appliance.offline.beams import beam_search
from appliance.offline.each import conversations, default_sampling, one_each
from appliance.offline.errors import InvalidRequestError, NotHereError, told
from appliance.offline.llm_engine import LLMEngine
from appliance.offline.metrics import EngineFigure
from appliance.offline.outputs import (
    BeamSearchOutput,
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
)
from appliance.offline.params import BeamSearchParams, LoRARequest, PoolingParams, SamplingParams
from appliance.offline.pooling import check_task, own_tasks, pool, read_pairs, score
from appliance.offline.progress import UseTqdm, progress_bar
from appliance.offline.prompts import Given, Prompt, read_prompts, read_tokenization
from appliance.offline.session import Session, close_apart
from appliance.offline.tokenizer import OfflineTokenizer
from appliance.offline.weights import Tensors, update_weights, weight_update
from appliance.offline.wishes import ChatOptions, Conversation, Wish
from appliance.plan.types import EnginePlan

T = TypeVar("T")
TokenizationKwargs = Mapping[str, Any] | None
Loras = LoRARequest | Sequence[LoRARequest | None] | None


class LLM:
    """A model that answers calls of this process, from the constructor to `close`.

    The engine runs in a thread here, or in a process for each replica or rank of the plan. Calls may come from any
    thread, and from a notebook. The same spec gives the same tokens as from a server or in a batch.
    """

    def __init__(self, model: str | None = None, **engine_args: Any) -> None:
        """Plans and loads a model. engine_args: vLLM's engine arguments, which become a spec.

        Raises EngineArgumentError for an argument that is not known, SpecError for a wrong value, FitError where the
        model does not fit.
        """
        with told():
            plan = EngineArgs(model, **engine_args).prepare().plan
        self._start(plan)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """Does what LLM(...) does with the same arguments."""
        return cls(engine_args.model, **engine_args.arguments)

    @classmethod
    def from_spec(cls, spec: str | Path, overrides: Overrides = ()) -> Self:
        """Runs the plan of a spec, the same as `appliance apply`. overrides: {"scheduler.max_num_seqs": 8} or
        ["scheduler.max_num_seqs=8"]. Raises SpecError, FitError."""
        with told():
            plan = prepare_spec(spec, overrides).plan
        return cls.from_plan(plan)

    @classmethod
    def from_plan(cls, plan: EnginePlan) -> Self:
        """Runs a plan that was made already."""
        made = cls.__new__(cls)
        made._start(plan)
        return made

    def _start(self, plan: EnginePlan) -> None:
        self._session = Session(plan)
        self.llm_engine = LLMEngine(self._session)  # for callers that go by steps; it ends with this object
        self._closing = weakref.finalize(self, close_apart, self._session)  # at the end of the process as well

    @property
    def plan(self) -> EnginePlan:
        """What runs: the plan, with the adapters that are served now."""
        return self._session.plan

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        priority: Sequence[int] | int | None = None,
        tokenization_kwargs: TokenizationKwargs = None,
    ) -> list[RequestOutput]:
        """Answers prompts, in their order. sampling_params, lora_request and priority: one for all, or one for each.
        tokenization_kwargs: truncate_prompt_tokens, add_special_tokens.

        Raises InvalidRequestError, before anything has begun, and RequestFailedError.
        """
        given = read_prompts(prompts, tokenization_kwargs)
        return self._answers(given, sampling_params, use_tqdm, lora_request, priority)

    def chat(
        self,
        messages: Any,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        chat_template: str | None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation, a list of messages, or several. Otherwise like `generate`."""
        planned = self.plan.model.chat_template_content_format
        if chat_template_content_format not in ("auto", planned):
            message = f"chat_template_content_format is {chat_template_content_format!r}; the plan has {planned!r}"
            raise InvalidRequestError(message, hint="it is an argument of LLM(...)")
        options = ChatOptions(
            tools=tools,
            chat_template=chat_template,
            chat_template_kwargs=chat_template_kwargs,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        several = [Conversation(each, options) for each in conversations(messages)]
        return self._answers(several, sampling_params, use_tqdm, lora_request, None)

    def beam_search(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: BeamSearchParams,
        lora_request: Loras = None,
        use_tqdm: UseTqdm = False,
        concurrency_limit: int | None = None,
    ) -> list[BeamSearchOutput]:
        """Returns the `beam_width` best sequences of each prompt that a beam search finds, the best first. Raises like
        `generate`."""
        given = read_prompts(prompts)
        loras = one_each("lora_request", lora_request, len(given))
        return self._with_bar(
            use_tqdm, len(given), lambda tick: beam_search(self._session, given, params, loras, concurrency_limit, tick)
        )

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Loras = None,
        pooling_task: str | None = None,
        truncate_prompt_tokens: int | None = None,
        tokenization_kwargs: TokenizationKwargs = None,
    ) -> list[PoolingRequestOutput]:
        """Returns the numbers of each prompt, float32 arrays. pooling_task: embed, classify, score, or those of each
        token. Raises like `generate`."""
        check_task(self.plan, "encode", pooling_task or next(iter(own_tasks(self.plan)), "embed"))
        given = read_prompts(prompts, tokenization_kwargs)
        return self._pooled(given, pooling_params, use_tqdm, lora_request, truncate_prompt_tokens)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: Loras = None,
        tokenization_kwargs: TokenizationKwargs = None,
    ) -> list[EmbeddingRequestOutput]:
        """Returns the vector of each prompt. Raises like `generate`."""
        check_task(self.plan, "embed", "embed")
        given = read_prompts(prompts, tokenization_kwargs)
        found = self._pooled(given, pooling_params, use_tqdm, lora_request, truncate_prompt_tokens)
        return [
            EmbeddingRequestOutput(each.request_id, EmbeddingOutput(each.outputs.data.tolist()), each.prompt_token_ids)
            for each in found
        ]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None,
        lora_request: Loras = None,
        tokenization_kwargs: TokenizationKwargs = None,
    ) -> list[ClassificationRequestOutput]:
        """Returns the probability of each class for each prompt. Raises like `generate`."""
        check_task(self.plan, "classify", "classify")
        given = read_prompts(prompts, tokenization_kwargs)
        found = self._pooled(given, pooling_params, use_tqdm, lora_request, None)
        return [
            ClassificationRequestOutput(
                each.request_id, ClassificationOutput(each.outputs.data.tolist()), each.prompt_token_ids
            )
            for each in found
        ]

    def reward(self, prompts: Prompt | Sequence[Prompt], **options: Any) -> list[PoolingRequestOutput]:
        """Returns what a reward model says of each prompt: `encode` by its own task."""
        return self.encode(prompts, **options)

    def score(
        self,
        data_1: Any,
        data_2: Any,
        *,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        tokenization_kwargs: TokenizationKwargs = None,
    ) -> list[ScoringRequestOutput]:
        """Scores one text with each of several, or texts one by one: by a model that reads both, or by the likeness of
        vectors. Raises like `generate`."""
        if self.plan.model.pooling is None:
            check_task(self.plan, "score", "score")
        pairs = read_pairs(data_1, data_2)
        params = replace(pooling_params or PoolingParams())
        cut, is_whole = read_tokenization(tokenization_kwargs)
        if not is_whole:
            raise InvalidRequestError("pairs are told apart by special tokens, which are always added")
        params.truncate_prompt_tokens = params.truncate_prompt_tokens or truncate_prompt_tokens or cut

        async def scored(tick: Callable[[], None]) -> list[ScoringRequestOutput]:
            scores = await score(self._session, pairs, params, lora_request)
            tick()
            return [ScoringRequestOutput(self._session.new_id(), ScoringOutput(each), []) for each in scores]

        return self._with_bar(use_tqdm, 1, scored)

    def get_tokenizer(self) -> OfflineTokenizer:
        return OfflineTokenizer(self._session)

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns what `generate` takes where no parameters are given: the model's own defaults."""
        return default_sampling(self.plan)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        """Forgets cached prefixes; False while any block is in use. reset_running_requests: what runs gives its blocks
        back first, and is computed again."""
        return self._session.run(
            lambda: calls.reset_prefix_cache(self._session, reset_running_requests, reset_connector)
        )

    def get_metrics(self) -> list[EngineFigure]:
        """Returns the figures so far, as `/metrics` of a server has them."""
        return self._session.run(lambda: calls.get_metrics(self._session))

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Gives memory back: level 1 keeps the weights on the host, level 2 nothing. Raises NotHereError where the plan
        has no sleep mode. Level 0 pauses, without giving anything back: open requests end ("abort"), run to their end
        ("wait") or stand still ("keep"), and new ones wait."""
        self._session.run(lambda: calls.sleep(self._session, level, mode))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Brings back what sleeps: "weights", "kv_cache", or all. "scheduling", and none, end a pause."""
        self._session.run(lambda: calls.wake_up(self._session, tags))

    def start_profile(self) -> None:
        self._session.run(lambda: calls.start_profile(self._session))

    def stop_profile(self) -> list[EngineProfile]:
        """Returns what each engine did since `start_profile`, and writes a trace into the folder of profiler_config.

        Raises TraceError where the folder cannot be had.
        """
        return self._session.run(lambda: calls.stop_profile(self._session))

    def close(self) -> None:
        """Ends the engine and frees all that it had. Safe to call twice."""
        if self._closing.detach():
            self._session.close()

    def shutdown(self) -> None:
        """Does what `close` does."""
        self.close()

    def collective_rpc(
        self,
        method: str,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Calls a method of `worker_extension_cls` on every rank, with values of JSON, and returns what each returned.
        timeout: seconds for each. Raises NotHereError for a function in place of a name, InvalidRequestError."""
        if not isinstance(method, str):
            raise NotHereError("collective_rpc calls methods of worker_extension_cls by name, and sends no functions")
        return self._session.run(lambda: calls.collective_rpc(self._session, method, timeout, args, kwargs or {}))

    def update_weights(
        self,
        path: str | Path | None = None,
        *,
        tensors: Tensors | None = None,
        sha256: str | None = None,
        abort: bool = False,
        flush_cache: bool = True,
    ) -> WeightStats:
        """Replaces the model's weights by those of a checkpoint, or by arrays under the checkpoint's names: all, or
        some. What runs ends first, unless `abort`. Raises RequestFailedError with why the old weights stay.

        tensors: float32, float16 or bfloat16, of NumPy or torch. sha256, flush_cache: see docs/guides/weights.md.
        """
        update = weight_update(path, tensors, sha256=sha256, abort=abort, flush_cache=flush_cache)
        return self._session.run(lambda: update_weights(self._session, update))

    def apply_model(self, func: Any) -> NoReturn:
        """Raises NotHereError: a model is a program of operators, and no module of torch."""
        raise NotHereError("apply_model is not here: a model is a program of operators, and no module of torch")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(
        self,
        prompts: Sequence[Given | Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: UseTqdm,
        lora_request: Loras,
        priority: Sequence[int] | int | None,
    ) -> list[RequestOutput]:
        if self.plan.model.pooling is not None:
            raise InvalidRequestError(
                "this model pools, and generates no text: it has encode, embed, classify and score"
            )
        params = self.get_default_sampling_params() if sampling_params is None else sampling_params
        wishes = [
            Wish(request_id=self._session.new_id(), prompt=prompt, params=each, lora=lora, priority=rank)
            for prompt, each, lora, rank in zip(
                prompts,
                one_each("sampling_params", params, len(prompts)),
                one_each("lora_request", lora_request, len(prompts)),
                one_each("priority", priority or 0, len(prompts)),
                strict=True,
            )
        ]
        return self._with_bar(use_tqdm, len(wishes), lambda tick: self._session.answers(wishes, tick))

    def _pooled(
        self,
        given: Sequence[Given],
        pooling_params: PoolingParams | Sequence[PoolingParams] | None,
        use_tqdm: UseTqdm,
        lora_request: Loras,
        truncate: int | None,
    ) -> list[PoolingRequestOutput]:
        stated = one_each("pooling_params", pooling_params or PoolingParams(), len(given))
        params = [replace(each, truncate_prompt_tokens=each.truncate_prompt_tokens or truncate) for each in stated]
        loras = one_each("lora_request", lora_request, len(given))
        return self._with_bar(use_tqdm, len(given), lambda tick: pool(self._session, given, params, loras, tick))

    def _with_bar(
        self, use_tqdm: UseTqdm, total: int, work: Callable[[Callable[[], None]], Coroutine[Any, Any, T]]
    ) -> T:
        bar = progress_bar(use_tqdm, total, "Processed prompts")
        try:
            return self._session.run(lambda: work(lambda: bar.update(1)))
        finally:
            bar.close()
