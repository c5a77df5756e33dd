"""A runner for scheduler tests: it keeps the KV cache as (position, token) cells and checks each plan against it."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from appliance.engine.core.scheduler import Scheduler
from appliance.engine.messages import ErrorKind, GenerateRequest, SamplingParams, SequenceOutput, SpeculationCaps
from appliance.engine.states import state_pieces
from appliance.engine.step import Chunk, DraftTokens, Moved, NewRow, RowError, StepPlan, StepResult

NextToken = Callable[[Sequence[int], int], int]  # (context, seed) -> token
Propose = Callable[[Sequence[int], int], list[int]]  # (context, seed) -> tokens that may come next
SPECULATION = SpeculationCaps(num_tokens=9, adaptive=False)  # all drafts are verified


def mixed(context: Sequence[int], seed: int) -> int:
    """A token that depends on every token before it, and on the seed."""
    return hash((tuple(context), seed)) % 97 + 3


class SimulatedRunner:
    """Reads back through the block tables what the next token depends on, and holds it against the row's tokens. Drafts
    that `propose` gives are verified token by token: each counts while the model says the same."""

    def __init__(
        self, scheduler: Scheduler, next_token: NextToken = mixed, propose: Propose = lambda context, seed: []
    ) -> None:
        self.block_size = scheduler.config.block_size
        self.windows = scheduler.config.windows
        self.has_states = scheduler.config.num_snapshots is not None
        self.states: dict[int, list[int]] = {}  # slot -> the tokens before it
        self.cells: dict[int, tuple[int, int, int]] = {}  # slot -> (group, position, token)
        self.rows: dict[int, NewRow] = {}
        self.tokens: dict[int, list[int]] = {}
        self.tables: dict[int, list[list[int]]] = {}  # of each group
        self.next_token = next_token
        self.propose = propose
        self.num_drafts = self.num_agreed = 0
        self.computed_tokens = 0
        self.broken: set[int] = set()  # sequence ids whose logits are NaN
        self.host: dict[int, object] = {}  # place -> the cells of a block, or a part of a state
        self.place_s = 0.001  # that a place takes to be stored or loaded
        self.spoils: Callable[[], bool] = lambda: (
            False
        )  # says of each load whether it finds other bytes than were stored

    def run(self, plan: StepPlan) -> StepResult:
        moved = self._move(plan)
        for row in plan.freed_rows:
            del self.rows[row], self.tokens[row], self.tables[row]
        for new in plan.new_rows:
            assert new.row not in self.rows, "row taken twice"
            self.rows[new.row], self.tokens[new.row] = new, list(new.token_ids)
            self.tables[new.row] = [[] for _ in self.windows]
        for source, target in plan.block_copies:
            for offset in range(self.block_size):
                if source * self.block_size + offset in self.cells:
                    cell = self.cells[source * self.block_size + offset]
                    self.cells[target * self.block_size + offset] = cell
        assert sum(chunk.length for chunk in plan.chunks) == plan.num_tokens
        assert len({chunk.row for chunk in plan.chunks}) == len(plan.chunks), "a row runs twice"
        errors = dict.fromkeys(moved.unloaded, RowError(ErrorKind.INTERNAL, "other bytes"))
        wrong = {block for move in plan.loads if move.row in moved.unloaded for block in move.blocks}
        for chunk in plan.chunks:  # all writes before any read, as layers do
            self._write(chunk)
            if chunk.row in moved.unloaded:
                wrong |= {block for blocks in chunk.new_blocks for block in blocks[chunk.start // self.block_size :]}
        if self.has_states:
            self._carry_states(plan.without(moved.unloaded))
        tokens: list[list[int]] = []
        drafts: dict[int, list[DraftTokens]] = {}
        for chunk in plan.chunks:
            if chunk.row in moved.unloaded:
                tokens += [[]] * chunk.sample
                continue
            if not wrong.isdisjoint(self._seen(chunk)):
                tokens += [[7]] * chunk.sample  # wrong, as what it reads is
                continue
            context = self._read(chunk)
            if self.rows[chunk.row].sequence_id in self.broken:
                errors[chunk.row] = RowError(ErrorKind.INTERNAL, "NaN")
                tokens += [[]] * chunk.sample
            elif chunk.sample:
                assert chunk.start + chunk.length - chunk.num_drafts == len(self.tokens[chunk.row])
                tokens.append(self._verified(chunk, context))
                self.tokens[chunk.row] += tokens[-1]
                proposed = self.propose(self.tokens[chunk.row], self.rows[chunk.row].seed)[: plan.most_drafts]
                if proposed:
                    drafts[chunk.row] = [DraftTokens(proposed, "test")]
        return StepResult(step=plan.step, tokens=tokens, errors=errors, drafts=drafts, moved=moved)

    def _move(self, plan: StepPlan) -> Moved:
        """Moves cells and states between slots and places, as numbers that are lost where a place is wrong."""
        size = self.block_size
        for move in plan.stores:
            for block, place in zip(move.blocks, move.places, strict=True):
                self.host[place] = [self.cells.get(block * size + offset) for offset in range(size)]
            for place in move.state_places:
                assert move.state is not None
                self.host[place] = list(self.states[move.state])
        unloaded = set()
        for move in plan.loads:
            if self.spoils():
                unloaded.add(move.row)
                continue
            for block, place in zip(move.blocks, move.places, strict=True):
                cells = self.host[place]
                assert isinstance(cells, list)
                self.cells |= {block * size + offset: cell for offset, cell in enumerate(cells) if cell is not None}
            for place in move.state_places:
                state = self.host[place]
                assert isinstance(state, list)
                assert move.state is not None
                self.states[move.state] = state
        counts = [sum(move.num_places for move in moves) for moves in (plan.stores, plan.loads)]
        seconds = [count * self.place_s for count in counts]
        return Moved(counts[0], seconds[0], counts[1], seconds[1], frozenset(unloaded))

    def _seen(self, chunk: Chunk) -> set[int]:
        """The blocks that a chunk reads, or writes."""
        seen, end = set[int](), -(-(chunk.start + chunk.length) // self.block_size)
        for table, window in zip(self.tables[chunk.row], self.windows, strict=True):
            first = 0 if window is None else max(0, chunk.start - window + 1)
            seen |= {*table[first // self.block_size : end]}
        return seen

    def _verified(self, chunk: Chunk, context: list[int]) -> list[int]:
        """Returns the drafts that the model samples as well, and the token after them."""
        said: list[int] = []
        known = len(context) - chunk.num_drafts
        for end in range(known, len(context) + 1):
            said.append(self.next_token(context[:end], self.rows[chunk.row].seed))
            if end < len(context) and said[-1] != context[end]:
                break
        self.num_drafts += chunk.num_drafts
        self.num_agreed += len(said) - 1
        return said

    def _stream(self, chunk: Chunk) -> list[int]:
        """The row's tokens, and the drafts that run with them."""
        return self.tokens[chunk.row] + ([] if chunk.draft is None else chunk.draft.token_ids)

    def _slot(self, row: int, group: int, position: int) -> int:
        return self.tables[row][group][position // self.block_size] * self.block_size + position % self.block_size

    def _write(self, chunk: Chunk) -> None:
        if chunk.new_blocks:
            for table, blocks in zip(self.tables[chunk.row], chunk.new_blocks, strict=True):
                table += blocks
        self.computed_tokens += chunk.length
        stream = self._stream(chunk)
        for position in range(max(chunk.start, chunk.write_start), chunk.start + chunk.length):
            for group in range(len(self.windows)):
                self.cells[self._slot(chunk.row, group, position)] = (group, position, stream[position])

    def _carry_states(self, plan: StepPlan) -> None:
        """Carries each row's state on, as if all rows ran at once: what one reads, no other may write."""
        if not plan.chunks:
            return
        rows, starts, lengths = np.array([(c.row, c.start, c.length) for c in plan.chunks], np.int32).T
        bounds = np.concatenate((np.zeros(1, np.int32), np.cumsum(lengths, dtype=np.int32)))
        pieces = state_pieces(plan.chunks, rows, starts, bounds)
        written: dict[int, int] = {}
        read: set[tuple[int, int]] = set()
        after = dict(self.states)
        for at, chunk in enumerate(plan.chunks):
            stream, position, own = self._stream(chunk), chunk.start, dict[int, list[int]]()
            assert pieces.start[pieces.first[at]] == bounds[at], "pieces begin elsewhere than their tokens"
            for piece in range(pieces.first[at], pieces.first[at + 1]):
                source, target = int(pieces.source[piece]), int(pieces.target[piece])
                state = [] if source < 0 else own[source] if source in own else self.states[source]
                if source not in own:
                    read.add((at, source))
                assert state == stream[:position], "a piece begins with the state of other tokens"
                position += int(pieces.start[piece + 1] - pieces.start[piece])
                own[target] = after[target] = stream[:position]
                assert written.setdefault(target, at) == at, "two sequences write one slot"
            assert position == chunk.start + chunk.length, "pieces leave out tokens"
            assert own[chunk.row] == stream[:position], "the row is left without its state"
        assert all(written.get(slot, at) == at for at, slot in read), "a slot is read and written by two sequences"
        self.states = after

    def _read(self, chunk: Chunk) -> list[int]:
        """The context as each group has it: what its window reaches, for any token of the chunk."""
        end, stream = chunk.start + chunk.length, self._stream(chunk)
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(0, chunk.start - window + 1)
            cells = [self.cells[self._slot(chunk.row, group, position)] for position in range(first, end)]
            assert {of for of, _, _ in cells} == {group}, "a block is another group's"
            assert [position for _, position, _ in cells] == list(range(first, end)), "a block holds other positions"
            assert [token for _, _, token in cells] == stream[first:end], "a block holds another sequence's tokens"
        return stream[:end]


class Harness:
    """Steps a scheduler over a simulated runner and gathers the outputs of each (request, index)."""

    def __init__(
        self, scheduler: Scheduler, next_token: NextToken = mixed, propose: Propose = lambda context, seed: []
    ) -> None:
        self.scheduler = scheduler
        self.runner = SimulatedRunner(scheduler, next_token, propose)
        self.outputs: dict[tuple[str, int], list[SequenceOutput]] = {}
        self.steps: list[StepPlan] = []
        self.begun: deque[tuple[StepPlan, StepResult]] = deque()  # not yet committed
        self.most_begun = 0

    def step(self) -> bool:
        """Begins a step, and commits the first one where no other may begin."""
        plan = self.scheduler.schedule()
        self.scheduler.check_invariants()
        config = self.scheduler.config
        if plan is not None:
            assert plan.num_tokens <= config.max_num_batched_tokens
            assert len(plan.chunks) <= config.max_num_seqs
            self.steps.append(plan)
            self.begun.append((plan, self.runner.run(plan)))
            self.most_begun = max(self.most_begun, len(self.begun))
        if not self.begun:
            assert not self.scheduler.has_work, "work is open, and nothing can run"
            return False
        if plan is None or len(self.begun) == config.num_lanes:
            self.commit()
        return True

    def commit(self) -> None:
        """Commits the first step that has begun."""
        self.gather(self.scheduler.commit(*self.begun.popleft()))
        self.scheduler.check_invariants()

    def abort(self, keys: Iterable[tuple[bytes, str]]) -> None:
        """Aborts requests once no step runs."""
        for key in keys:
            while self.begun:
                self.commit()
            self.gather(self.scheduler.abort([key]))

    def run(self, limit: int = 10_000) -> None:
        for _ in range(limit):
            if not self.step():
                return
        raise AssertionError(f"still working after {limit} steps")

    def gather(self, outputs: dict[bytes, list[SequenceOutput]]) -> None:
        for batch in outputs.values():
            for output in batch:
                self.outputs.setdefault((output.request_id, output.index), []).append(output)

    def tokens(self, request_id: str, index: int = 0) -> list[int]:
        return [token for output in self.outputs[request_id, index] for token in output.token_ids]

    def finish(self, request_id: str, index: int = 0) -> SequenceOutput:
        last = self.outputs[request_id, index][-1]
        assert last.finish_reason is not None
        assert sum(output.finish_reason is not None for output in self.outputs[request_id, index]) == 1
        return last


def generate(
    request_id: str, prompt: Sequence[int], max_tokens: int = 4, *, eos: tuple[int, ...] = (), priority: int = 0,
    salt: str | None = None, arrival: float = 0.0, **sampling: object,
) -> GenerateRequest:  # fmt: skip
    return GenerateRequest(
        request_id=request_id,
        prompt_token_ids=list(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, **sampling),  # type: ignore[arg-type] # free keywords
        eos_token_ids=eos,
        priority=priority,
        cache_salt=salt,
        arrival_time=arrival,
    )
