"""What an engine is asked to do with its weights, and tells of them."""

import msgspec

from appliance.checkpoint.named_tensor import NamedTensor
from appliance.engine.adapter_messages import AdapterSet


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """New weights for the model that is served: either of a checkpoint on the engine's machine, or tensors.

    sha256: the digest that the checkpoint has to have. abort: open requests are aborted; else they end first, and new
    ones wait. flush_cache: prefixes of the old weights are forgotten at once. Else their blocks stay until others need
    them, and are found when the same weights come again. label: what a caller calls these weights.
    """

    path: str | None = None
    tensors: tuple[NamedTensor, ...] = ()
    sha256: str | None = None
    abort: bool = False
    flush_cache: bool = True
    label: str | None = None


class UpdateWeights(msgspec.Struct, frozen=True, kw_only=True, tag="update_weights"):
    """Replaces weights; it is answered by a WeightStats, or by why the old ones stay. is_held: it is answered when the
    new ones were read and checked, and they wait for SettleWeights."""

    call_id: str
    update: WeightUpdate
    is_held: bool = False


class SettleWeights(msgspec.Struct, frozen=True, kw_only=True, tag="settle_weights"):
    """Puts the weights that wait in place, or forgets them; it is answered by a WeightStats."""

    call_id: str
    is_wanted: bool


Change = AdapterSet | UpdateWeights | SettleWeights  # of what an engine serves


class WeightStats(msgspec.Struct, frozen=True, kw_only=True):
    """version: how often weights were replaced since the engine started. digest: of the last ones; None: they are the
    planned ones. source: the checkpoint's path, or "tensors". staging_s, waiting_s, commit_s: what the last update took
    to read, until open requests had ended, and while no step ran."""

    version: int = 0
    digest: str | None = None
    source: str | None = None
    label: str | None = None
    staging_s: float = 0.0
    waiting_s: float = 0.0
    commit_s: float = 0.0
