"""The back-end on llguidance: its Rust code compiles grammars, matches tokens and fills masks, or refuses.

Imported when the first constraint arrives, so that an engine without constraints neither loads nor pays for it.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import llguidance
import msgspec

from appliance.engine.grammar.calls import CallsOrAnswer, calls_as_lark
from appliance.engine.grammar.complaints import meaning
from appliance.engine.grammar.gbnf import gbnf_as_lark
from appliance.engine.grammar.inline import InlineSchemas, schema_grammar
from appliance.engine.grammar.interface import GrammarError, MatcherError
from appliance.engine.grammar.lark_schemas import with_checked_schemas
from appliance.engine.grammar.literals import quoted
from appliance.engine.grammar.locate import locate
from appliance.engine.grammar.options import json_options
from appliance.engine.grammar.rehearsal import rehearse
from appliance.engine.grammar.tags import TagRules, tags_as_lark
from appliance.engine.messages import Constraint, Vocabulary

if TYPE_CHECKING:  # the sandbox does not load numpy
    import numpy as np
    import numpy.typing as npt

# A grammar or a step that needs more is refused; so each costs at most milliseconds and some megabytes.
LIMITS = llguidance.LLParserLimits(
    max_items_in_row=2_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)


class GuidanceBackend:
    """Compiles constraints for one vocabulary. Safe to use from several threads."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int) -> None:
        """vocab_size: the width of the model's logits. Raises GrammarError if llguidance cannot read the tokenizer."""
        try:
            self._tokenizer = llguidance.LLTokenizer(
                vocabulary.tokenizer, n_vocab=vocab_size, eos_token=list(vocabulary.eos_token_ids)
            )
        except ValueError as error:
            raise GrammarError("the vocabulary of this model is of no kind that can be constrained") from error

    def prepare(self, constraint: Constraint) -> str:
        try:
            prelude = None if constraint.after is None else self._prelude(constraint.after)
            return grammar_text(constraint, prelude, self._literal)
        except RecursionError as error:
            raise GrammarError("it is nested too deeply") from error

    def compile(self, constraint: Constraint, text: str | None = None) -> "GuidanceGrammar":
        """Compiles, and computes the first mask so that a too heavy grammar fails here. Raises GrammarError."""
        matcher = self._matcher(self.prepare(constraint) if text is None else text)
        if matcher.is_error():
            path = ""
            if constraint.kind == "json_schema":
                path = locate(msgspec.json.decode(constraint.source), self._is_bad_schema)
            raise GrammarError(meaning(matcher.get_error(), has_places=constraint.kind == "lark"), path)
        return GuidanceGrammar(matcher)

    def _is_bad_schema(self, schema: dict[str, Any]) -> bool:
        return self._matcher(_encode({"json_schema": schema})).is_error()

    def _matcher(self, text: str) -> llguidance.LLMatcher:
        """Returns a matcher at the beginning of the grammar; its is_error() is true if the grammar is invalid."""
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()
        return matcher

    def _prelude(self, end: str) -> str:
        """Returns the Lark rules of free text up to `end`, which may be one special token."""
        token_ids = self._tokenizer.tokenize_str(end, parse_special=True)
        if len(token_ids) == 1 and self._tokenizer.is_special_token(token_ids[0]):
            return f"prelude: TEXT <[{token_ids[0]}]>\nTEXT: /(.|\\n)*/"
        return f"prelude[lazy]: TEXT {quoted(end)}\nTEXT: /(.|\\n)*/"

    def _literal(self, text: str) -> str:
        """Returns the Lark form of a text, with special tokens as token ids; that of an empty text is `""`."""
        parts: list[str] = []
        plain: list[int] = []
        for token in [*self._tokenizer.tokenize_str(text, parse_special=True), None]:
            if token is not None and not self._tokenizer.is_special_token(token):
                plain.append(token)
                continue
            if plain:
                parts.append(quoted(self._tokenizer.decode_str(plain)))
                plain = []
            if token is not None:
                parts.append(f"<[{token}]>")
        return " ".join(parts) or '""'


class GuidanceGrammar:
    """A compiled grammar: a matcher at its beginning, copied for each sequence."""

    def __init__(self, prototype: llguidance.LLMatcher) -> None:
        self._prototype = prototype

    def start(self) -> "GuidanceMatcher":
        return GuidanceMatcher(self._prototype.deep_copy())

    def rehearse(self) -> None:
        rehearse(self._prototype)


class GuidanceMatcher:
    """See interface.Matcher. An llguidance matcher raises nothing; once in error, it stays there."""

    __slots__ = ("_matcher",)

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def fill(self, row: "npt.NDArray[np.uint32]") -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        self._check()

    def consume(self, token_ids: Sequence[int]) -> None:
        if token_ids and not self._matcher.consume_tokens(list(token_ids)):
            self._check()
            raise MatcherError("a token does not fit")

    def forced(self) -> list[int]:
        forced: list[int] = self._matcher.compute_ff_tokens()
        return forced

    def num_fitting(self, token_ids: Sequence[int]) -> int:
        count: int = self._matcher.validate_tokens(list(token_ids))
        self._check()
        return count

    def roll_back(self, count: int) -> None:
        if count and not self._matcher.rollback(count):
            self._check()
            raise MatcherError("tokens could not be taken back")

    @property
    def is_complete(self) -> bool:
        return self._matcher.is_stopped() and not self._matcher.is_error()

    @property
    def is_accepting(self) -> bool:
        return self._matcher.is_accepting()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise MatcherError(meaning(self._matcher.get_error()))


def grammar_text(
    constraint: Constraint, end_of_prelude: str | None = None, literal: Callable[[str], str] = quoted
) -> str:
    """Returns the constraint in the library's notation: a list of grammars, of which the first is the start.

    `end_of_prelude` is the Lark form of constraint.after; `literal` gives that of a text with special tokens in it.
    Raises GrammarError.
    """
    grammars = _grammars(constraint, literal)
    if end_of_prelude is not None:
        grammars[0]["name"] = "inside"
        grammars.insert(0, {"lark_grammar": f"start: prelude @inside\n{end_of_prelude}\n"})
    return _encode(*grammars)


def _grammars(constraint: Constraint, literal: Callable[[str], str]) -> list[dict[str, Any]]:
    if constraint.kind != "calls":
        return _alone(constraint)
    rules = msgspec.json.decode(constraint.source, type=CallsOrAnswer)
    schemas = InlineSchemas(json_options(constraint), "of_call_")
    calls = calls_as_lark(rules, schemas, literal)
    answer, *others = _alone(rules.answer)
    return [{"lark_grammar": calls}, {"name": "answer"} | answer, *schemas.grammars, *others]


def _alone(constraint: Constraint) -> list[dict[str, Any]]:
    """Returns the grammar of a constraint that contains no other, then the grammars that its rules call."""
    if constraint.kind not in ("tags", "lark"):
        return [_grammar(constraint)]
    schemas = InlineSchemas(json_options(constraint), f"of_{constraint.kind}_")
    if constraint.kind == "lark":
        lark = with_checked_schemas(constraint.source, schemas)
    else:
        lark = tags_as_lark(msgspec.json.decode(constraint.source, type=TagRules), schemas)
    return [{"lark_grammar": lark}, *schemas.grammars]


def _grammar(constraint: Constraint) -> dict[str, Any]:
    match constraint.kind:
        case "json_schema":
            return schema_grammar(msgspec.json.decode(constraint.source), json_options(constraint))
        case "regex":
            # Classes such as \w mean ASCII only: beyond ASCII, regular expression engines differ.
            body = llguidance.regex_to_lark(constraint.source, use_ascii="dws")
            return {"lark_grammar": f"start: /{body}/"}
        case "choice":
            choices = msgspec.json.decode(constraint.source, type=list[str])
            return {"lark_grammar": f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, choices))}\n"}
        case "gbnf":
            return {"lark_grammar": gbnf_as_lark(constraint.source)}
        case "lark" | "tags" | "calls":
            raise AssertionError(f"{constraint.kind} has grammars beside it")


def _encode(*grammars: dict[str, Any]) -> str:
    return msgspec.json.encode({"grammars": grammars}).decode()
