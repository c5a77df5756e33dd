"""Drafting heads as data: what they read of the model that they draft for, and what that keeps for them."""

from typing import Literal

import msgspec


class KeptStates(msgspec.Struct, frozen=True):
    """What a model keeps of each token for a head: its residual stream before each of these layers, side by side;
    without any, what its output head reads."""

    layers: tuple[int, ...] = ()


class DraftHeadSpec(msgspec.Struct, frozen=True):
    """What makes a decoder of few layers a head, which guesses the token after the next one.

    It reads the embedding of a token, and the state of the token before it: of the model for tokens that it has run,
    else the one that the head made itself. reads: how these two become one. "joined": the residual stream is a linear
    map, `fc`, of both side by side, each with a norm of its own (`embed_norm`, `state_norm`) if `has_norms` (DeepSeek
    V3, arXiv:2412.19437, and EAGLE, arXiv:2401.15077). "first_layer": the stream is the state, and the mixer of the
    first layer reads the norms of both side by side (EAGLE 3, arXiv:2503.01840).

    num_states: states of the model that are side by side, which `fc` makes one with "first_layer". embedding_first:
    in the joined vector. fc_bias: `fc` has a bias. norms_stream: with "first_layer", the stream is the state's norm.
    states: what the head makes: the sum after its last layer, or the final norm of it. head_size: tokens that its
    output head knows; None for all of the table.
    """

    reads: Literal["joined", "first_layer"] = "joined"
    num_states: int = 1
    has_norms: bool = True
    embedding_first: bool = True
    fc_bias: bool = False
    norms_stream: bool = False
    states: Literal["summed", "normed"] = "summed"
    head_size: int | None = None
