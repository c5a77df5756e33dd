"""Drafting heads as data: what they read of the model that they draft for, and what that keeps for them.

A DraftHeadSpec makes a head of a decoder. A StageSpec is one of several heads without layers, of which each guesses one
further token and keeps no cache.
"""

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


class MedusaHeadSpec(msgspec.Struct, frozen=True):
    """A head that guesses a token some places ahead from the model's state alone (arXiv:2401.10774): num_blocks times
    x = x + silu(linear(x)), with a bias if `has_bias`, then an output head. logit_scale: a factor of the logits."""

    num_blocks: int
    has_bias: bool
    logit_scale: float = 1.0


class MlpSpeculatorSpec(msgspec.Struct, frozen=True):
    """A stage of an MLP speculator (arXiv:2404.19124): what the last stage made and the last token make the next state,
    x = gelu(norm(projection(x) + embedding_scale * embedding)), which an output head reads.

    widths: of the states that are given side by side, each with a projection of its own: the model's, and that of a
    stage before, one of which is zero where the other is read; one, if the stage only reads one of them. norms_given:
    the model's state is normed by its root mean square, without a weight, and divided by the root of two. eps: of both
    norms.
    """

    widths: tuple[int, ...]
    embedding_scale: float
    norms_given: bool = False
    eps: float = 1e-6


StageSpec = MedusaHeadSpec | MlpSpeculatorSpec
