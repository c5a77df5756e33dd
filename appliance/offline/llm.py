"""LLM: vLLM's class for calls that return when all is answered."""

import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from appliance.engine.profile import EngineProfile
from appliance.offline import calls
from appliance.offline.arguments import EngineArgs, Overrides, prepare_spec
from appliance.offline.each import conversations, default_sampling, one_each
from appliance.offline.errors import InvalidRequestError, NotHereError, told
from appliance.offline.outputs import RequestOutput
from appliance.offline.params import LoRARequest, SamplingParams
from appliance.offline.progress import UseTqdm, progress_bar
from appliance.offline.prompts import Given, Prompt, read_prompts
from appliance.offline.session import Session
from appliance.offline.tokenizer import OfflineTokenizer
from appliance.offline.wishes import ChatOptions, Conversation, Wish
from appliance.plan.types import EnginePlan

T = TypeVar("T")
Loras = LoRARequest | Sequence[LoRARequest | None] | None


class LLM:
    """A model that answers calls of this process, from the constructor to `close`.

    The engine runs in a thread here, or in a process for each replica or rank of the plan. Calls may come from any
    thread, and from a notebook. The same spec gives the same tokens as from a server or in a batch.
    """

    def __init__(self, model: str, **engine_args: Any) -> None:
        """Plans and loads a model. engine_args: vLLM's engine arguments, which become a spec.

        Raises EngineArgumentError for an argument that is not known, SpecError for a wrong value, FitError where the
        model does not fit.
        """
        with told():
            plan = EngineArgs(model, **engine_args).prepare().plan
        self._start(plan)

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
        self._closing = weakref.finalize(self, self._session.close)  # at the end of the process as well

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
    ) -> list[RequestOutput]:
        """Answers prompts, in their order. sampling_params, lora_request and priority: one for all, or one for each.

        Raises InvalidRequestError, before anything has begun, and RequestFailedError.
        """
        return self._answers(read_prompts(prompts), sampling_params, use_tqdm, lora_request, priority)

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

    def get_tokenizer(self) -> OfflineTokenizer:
        return OfflineTokenizer(self._session)

    def get_default_sampling_params(self) -> SamplingParams:
        """Returns what `generate` takes where no parameters are given: the model's own defaults."""
        return default_sampling(self.plan)

    def reset_prefix_cache(self) -> bool:
        """Forgets cached prefixes; False while any block is in use."""
        return self._session.run(lambda: calls.reset_prefix_cache(self._session))

    def sleep(self, level: int = 1) -> None:
        """Gives memory back: level 1 keeps the weights on the host, level 2 nothing. Raises NotHereError where the plan
        has no sleep mode."""
        self._session.run(lambda: calls.sleep(self._session, level))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Brings back what sleeps: "weights", "kv_cache", or all."""
        self._session.run(lambda: calls.wake_up(self._session, tags))

    def start_profile(self) -> None:
        self._session.run(lambda: calls.start_profile(self._session))

    def stop_profile(self) -> list[EngineProfile]:
        """Returns what each engine did since `start_profile`."""
        return self._session.run(lambda: calls.stop_profile(self._session))

    def close(self) -> None:
        """Ends the engine and frees all that it had. Safe to call twice."""
        self._closing()

    def shutdown(self) -> None:
        """Does what `close` does."""
        self.close()

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises NotHereError: workers take no calls by name."""
        raise NotHereError("collective_rpc is not here: ranks run one program and take no other calls")

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

    def _with_bar(
        self, use_tqdm: UseTqdm, total: int, work: Callable[[Callable[[], None]], Coroutine[Any, Any, T]]
    ) -> T:
        bar = progress_bar(use_tqdm, total, "Processed prompts")
        try:
            return self._session.run(lambda: work(lambda: bar.update(1)))
        finally:
            bar.close()
