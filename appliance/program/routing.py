"""Mixture of experts: who computes a token, and what they make of it.

Widths beside those of program/operators.py: E experts, k of them chosen for a token, I the width of one expert.
"""

from typing import Literal

from msgspec.structs import replace

from appliance.program.record import ActivationKind, Record
from appliance.program.slots import Slot
from appliance.program.work import Forms, OperatorWork

Scoring = Literal["softmax", "sigmoid", "softmax_of_chosen", "sparsemixer"]
GroupScoring = Literal["max", "top2"]


class ChooseExperts(Record, frozen=True):
    """experts[t] = the num_chosen experts of largest score, in ascending order; factors[t] = their scores.

    Scores are softmax(logits[t]) or sigmoid(logits[t]); with "softmax_of_chosen" experts are chosen by their logits,
    and the factors are the softmax of the chosen ones' logits. With "sparsemixer" (arXiv 2409.12136) experts are chosen
    by their logits one after the other, and the factor of each is its softmax among those that are not chosen yet and
    whose logit l is near the chosen one's, m: (m - l) / max(|l|, m) <= 2 * jitter; it has no groups. `correction` [E]
    is added to scores for choosing only. Of equal scores the lower index is chosen. With more than one group,
    E / num_groups neighbours each, only experts of the num_chosen_groups groups of largest score are chosen: the
    largest score in a group, or the sum of its two largest. renormalize: factors are divided by their sum. At last they
    are multiplied by `scale`, and each with that of its expert in `expert_scale` [E].

    logits: f32 [rows, E]. experts: int32 [rows, k]. factors: f32 [rows, k].
    """

    doc = "choose the experts of each token"
    vectors = ("correction", "expert_scale")

    logits: Slot
    experts: Slot
    factors: Slot
    scoring: Scoring
    correction: str | None = None
    renormalize: bool = False
    scale: float = 1.0
    num_groups: int = 1
    num_chosen_groups: int = 1
    group_scoring: GroupScoring = "top2"
    expert_scale: str | None = None
    jitter: float = 0.0


class Experts(Record, frozen=True):
    """out[t] = sum over e in experts[t], in order, of factor * (down_e(act(gate_e(x[t])) * up_e(x[t]))).

    act(g) * u is kind(g) * u; with `limit` after g = min(g, limit) and u = clamp(u, -limit, limit); with a silu it is
    g * sigmoid(alpha * g) * (u + up_offset). Without gates it is kind(u). weigh_input: experts get factor * x[t], and
    their outputs are added as they are.

    up: for each expert its rows of the gate, I, and then its rows of up, I; or up alone, where `gate` has the former
    [E * I] or there are no gates (`is_gated` False). down: for each expert D rows. Biases are vectors of as many
    numbers, in the order of the rows. A row rounds alike in every batch, as a Linear's.

    own: of a rank, its experts, from the first up to before the last; weights and biases are theirs alone. Then out is
    [rows, k * D], for each choice of a row the output of its expert before the factor, where the rank has the expert;
    and the choices of a row need not be in order, so that they may be places (PlaceExperts) of which num_experts are.
    """

    doc = "the chosen experts of each token, and their weighted sum"
    matrices = ("gate", "up", "down")
    vectors = ("gate_bias", "up_bias", "down_bias")

    x: Slot
    experts: Slot
    factors: Slot
    up: str
    down: str
    out: Slot
    num_experts: int
    width: int
    kind: ActivationKind
    is_gated: bool = True
    gate: str | None = None
    gate_bias: str | None = None
    up_bias: str | None = None
    down_bias: str | None = None
    limit: float | None = None
    alpha: float = 1.0
    up_offset: float = 0.0
    weigh_input: bool = False
    own: tuple[int, int] | None = None

    @property
    def num_own(self) -> int:
        """The experts whose weights are here."""
        return self.num_experts if self.own is None else self.own[1] - self.own[0]

    @property
    def out_width(self) -> int:
        """The width of one expert's output."""
        return self.out.width if self.own is None else self.out.width // self.num_chosen

    @property
    def num_chosen(self) -> int:
        return self.experts.width

    def work(self, forms: Forms) -> OperatorWork:
        sizes = [forms.weight(name) for name in self.named(self.matrices)]
        layout = forms.weight(self.up).layout
        products = self.x.width * self.width * (2 if self.is_gated else 1) + self.width * self.out_width
        return OperatorWork(
            label="experts",
            unit=forms.unit(layout),
            kernel=forms.kernel(layout),
            weight_bytes=sum(size.size_bytes for size in sizes),
            row_operations=2 * products * self.num_chosen * self.num_own // self.num_experts,
            extent=self.x.extent,
            chosen_share=self.num_chosen / self.num_experts,
        )


def rows_an_expert(op: Experts) -> dict[str, tuple[str, int]]:
    """Returns by field the name of each weight and bias, and how many rows of it an expert has."""
    inner = op.width * (2 if op.is_gated and op.gate is None else 1)
    heights = {"gate": op.width, "up": inner, "down": op.out_width}
    fields = ((field, height) for each, height in heights.items() for field in (each, f"{each}_bias"))
    return {field: (name, height) for field, height in fields if (name := getattr(op, field)) is not None}


class MixExperts(Record, frozen=True):
    """out[t] = sum over i of factors[t, i] * x[t, i * D : (i + 1) * D], in order; weigh_input: without the factors, as
    the inputs had them."""

    doc = "the weighted sum of what the experts of each token gave"

    x: Slot
    factors: Slot
    out: Slot
    weigh_input: bool = False


class SpreadExperts(Experts, frozen=True):
    """Experts of which each of several replicas has some, `own`, for the rows of all of them: out as of Experts.

    In each step every replica of the group runs it, also one without rows. It brings the rows of all together, gives
    those of all what its own experts make of them, and adds for its own rows what all experts made, in the order of
    the choices: each output is computed whole, by one replica, so a row is what it is where one replica has all
    experts. The choices of a row need not be in order, as in `Experts` with `own`.
    """

    doc = "the chosen experts of each token, which are those of several replicas, and their weighted sum"

    num_replicas: int = 1

    @property
    def out_width(self) -> int:
        return self.out.width

    def work(self, forms: Forms) -> OperatorWork:
        """Returns the work where all replicas have as many rows."""
        work, share = super().work(forms), self.num_chosen / self.num_experts
        met = 1.0 - (1.0 - share) ** self.num_replicas  # of its experts, those that a row of each replica chooses
        operations = work.row_operations * self.num_replicas
        return replace(work, row_operations=operations, chosen_share=met)


class PlaceExperts(Record, frozen=True):
    """out[t, i] = a place of the expert e = experts[t, i]: of those where it is, in rising order, number (t + e) modulo
    how many there are. So the copies of an expert share its rows evenly, and which copy computes a row changes nothing.

    placed: the expert of each place, when the program is bound. mixture: its number among those of the program, by
    which places are changed later; programs over the same weights have the same ones.
    """

    doc = "the places where the chosen experts of each token are"

    experts: Slot
    out: Slot
    num_experts: int
    placed: tuple[int, ...]
    mixture: int


class GatedAdd(Record, frozen=True):
    """out[t] += sigmoid(gate[t]) * x[t], gate [rows, 1]."""

    doc = "sum with another activation that a gate of each row weighs"

    x: Slot
    gate: Slot
    out: Slot
