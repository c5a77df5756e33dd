"""What engines tell of drafts."""

import msgspec


class MethodStats(msgspec.Struct, frozen=True, array_like=True):
    """What became of the drafts of one method."""

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()  # by position in the draft


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True):
    """Drafts by method; and steps with decodes by what was done: `verified`, or why there was nothing to verify.

    drafting_s, num_passes: how long and how often a drafting model ran.
    """

    methods: dict[str, MethodStats] = {}
    steps: dict[str, int] = {}
    drafting_s: float = 0.0
    num_passes: int = 0
