"""What the rows say in a step: sampled tokens, with the drafts that they equal, and the tokens that grammars force."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.engine.grammar.masks import Advance, GrammarMasks
from appliance.engine.inputs import LogitRows
from appliance.engine.rows import Rows
from appliance.engine.step import Chunk, RowError, StepPlan


@dataclass(slots=True)
class Said:
    """tokens: by row, in the plan's order; of a row in `errors`, those that it said before. completed: rows whose
    grammar allows nothing more."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    errors: dict[int, RowError] = field(default_factory=dict)
    completed: frozenset[int] = frozenset()


def say_single(wanted: LogitRows, sampled: list[int], faults: Mapping[int, RowError], grammars: GrammarMasks) -> Said:
    """Returns what is said in a step without drafts, whose sampled tokens were appended to the rows already."""
    rows = wanted.rows[: wanted.num_sampled].tolist()
    advance = grammars.advance(rows, sampled)
    errors = {rows[at]: fault for at, fault in faults.items()} | advance.errors
    said = {row: [token] for row, token in zip(rows, sampled, strict=True)}
    for row, forced in advance.forced.items():
        said[row] += forced
    for row in errors:
        said[row] = []
    return Said(said, errors, frozenset(advance.completed))


def say_with_drafts(
    rows: Rows,
    plan: StepPlan,
    wanted: LogitRows,
    sampled: list[int],
    faults: Mapping[int, RowError],
    grammars: GrammarMasks,
) -> Said:
    """Returns what is said in a step of which some chunks verify drafts; nothing was appended to the rows yet."""
    assert wanted.first is not None, "the step has drafts"
    said, advance = Said(), Advance()
    chunks = (chunk for chunk in plan.chunks if chunk.sample)
    for chunk, first in zip(chunks, wanted.first, strict=True):
        end = first + chunk.num_drafts + 1
        own = {at - first: fault for at, fault in faults.items() if first <= at < end}
        verifying = _Verifying(chunk, sampled[first:end], own, int(rows.num_tokens[chunk.row]))
        said.tokens[chunk.row] = verifying.said(grammars, advance)
        if (error := verifying.error or advance.errors.get(chunk.row)) is not None:
            said.errors[chunk.row] = error
    said.completed = frozenset(advance.completed)
    return said


@dataclass(slots=True)
class _Verifying:
    """A chunk with the tokens sampled after none, one ... all tokens of its draft, and why some are none."""

    chunk: Chunk
    sampled: list[int]
    faults: Mapping[int, RowError]
    num_known: int
    error: RowError | None = None

    def said(self, grammars: GrammarMasks, advance: Advance) -> list[int]:
        """Returns what the row says: sampled tokens up to the first that its draft does not have there, and forced
        tokens in their places, exactly as if each had been sampled in a step of its own."""
        row, tokens = self.chunk.row, list[int]()
        draft = [] if self.chunk.draft is None else self.chunk.draft.token_ids
        while len(tokens) <= len(draft) and tokens == draft[: len(tokens)]:
            self.error = grammars.draft_error(row, len(tokens)) or self.faults.get(len(tokens))
            if self.error is not None:
                break
            token = self.sampled[len(tokens)]
            grammars.take(row, token, self.num_known + len(tokens) + 1, advance)
            if row in advance.errors:
                break
            tokens += [token, *advance.forced.pop(row, [])]
            if row in advance.completed:
                break
        return tokens
