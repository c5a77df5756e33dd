"""Takes random walks through an llguidance grammar, as a model would take them, but without a model."""

import random
import time

import llguidance

_NUM_WALKS = 3
_MOST_TOKENS = 16  # of a walk
_MOST_S = 0.2  # for all walks: masks of some grammars are slow, and the engine has its own bound for them


def rehearse(prototype: llguidance.LLMatcher) -> None:
    """Takes the walks from the beginning. An error or an end finishes a walk."""
    choose, deadline = random.Random(0), time.monotonic() + _MOST_S
    for number in range(_NUM_WALKS):
        matcher = prototype.deep_copy()
        for _ in range(_MOST_TOKENS):
            if matcher.is_stopped() or time.monotonic() > deadline:
                break
            allowed = int.from_bytes(matcher.compute_bitmask(), "little")  # 0 in an error
            if not allowed or not matcher.consume_token(_lowest(allowed) if number == 0 else _any(allowed, choose)):
                break
            matcher.consume_tokens(matcher.compute_ff_tokens())


def _any(allowed: int, choose: random.Random) -> int:
    """Returns a random set bit; bits after gaps are likelier."""
    from_here = choose.randrange(allowed.bit_length())
    return from_here + _lowest(allowed >> from_here)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
