"""Makes a request's sequences, or a refusal that names what is wrong with the request."""

import math
from random import Random

from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.engine.core.config import SchedulerConfig
from appliance.engine.core.policy import Policy
from appliance.engine.core.sequence import Request, Sequence
from appliance.engine.grammar.interface import Grammar
from appliance.engine.messages import ErrorKind, GenerateRequest
from appliance.engine.refusal import Refusal

_MASK = (1 << 64) - 1


def sibling_seed(seed: int, index: int) -> int:
    """Returns the seed of sequence `index`: the request's own for 0, then steps of splitmix64 (Steele et al. 2014)."""
    if index == 0:
        return seed & _MASK
    z = (seed + index * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


class RequestFactory:
    """Numbers sequences, gives them their place in the policy's order, and draws seeds for requests without one."""

    def __init__(self, config: SchedulerConfig, policy: Policy) -> None:
        self._config = config
        self._policy = policy
        self._random = Random(config.seed)
        self._next_order = 0

    def create(
        self,
        client: bytes,
        message: GenerateRequest,
        grammar: Grammar | None = None,
        adapter: ServedAdapter | None = None,
    ) -> Request:
        """Makes the request with its `n` sequences. Raises Refusal if it cannot be served."""
        self._check(message)
        request = Request(client, message, grammar, adapter)
        sampling = message.sampling
        seed = self._random.getrandbits(64) if sampling.seed is None else sampling.seed
        first = self._next_order
        self._next_order += sampling.n
        for index in range(sampling.n):
            request.sequences.append(
                Sequence(
                    request,
                    index,
                    order=first + index,
                    key=self._policy(message.priority, message.arrival_time, first, index),
                    seed=sibling_seed(seed, index),
                    max_sequence_len=self._config.max_sequence_len,
                )
            )
        return request

    def create_check(self, client: bytes, message: GenerateRequest, adapter: ServedAdapter | None) -> Request:
        """Makes the request of a check of an adapter, which runs before every other one."""
        request = Request(client, message, None, adapter)
        request.is_check = True
        key, order, self._next_order = (-math.inf,), self._next_order, self._next_order + 1
        most = self._config.max_sequence_len
        request.sequences.append(Sequence(request, 0, order=order, key=key, seed=0, max_sequence_len=most))
        return request

    def _check(self, message: GenerateRequest) -> None:
        length = len(message.prompt_token_ids)
        config = self._config
        if length == 0:
            raise Refusal(ErrorKind.INVALID, "prompt", "the prompt is empty; it must have at least one token")
        if config.pooling is not None:
            self._check_pooled(length)
        elif length >= config.max_model_len:
            raise Refusal(
                ErrorKind.INVALID,
                "prompt",
                f"the prompt has {length} tokens; the context of {config.max_model_len} leaves room for at most"
                f" {config.max_model_len - 1} and one to generate",
            )
        elif length >= config.max_sequence_len:
            raise Refusal(
                ErrorKind.INVALID,
                "prompt",
                f"the prompt has {length} tokens; the whole KV cache holds {config.max_sequence_len}"
                f" ({config.num_blocks} blocks of {config.block_size})",
            )
        if message.priority != 0 and config.policy != "priority":
            raise Refusal(
                ErrorKind.INVALID,
                "priority",
                f"priority is {message.priority}; under the {config.policy} policy it must be 0",
            )

    def _check_pooled(self, length: int) -> None:
        """Nothing is generated: a prompt may be as long as the context."""
        if length > self._config.max_sequence_len:
            message = f"the prompt has {length} tokens; the context has {self._config.max_sequence_len}"
            raise Refusal(ErrorKind.INVALID, "prompt", message)
