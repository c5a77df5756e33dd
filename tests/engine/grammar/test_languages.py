"""Regular expressions, choices, context-free grammars, tags and preludes: each output belongs to the language."""

import json
import re
from typing import Any

import lark
import msgspec
import pytest

from appliance.engine.grammar.interface import GrammarError, MatcherError
from appliance.engine.grammar.tags import Tag, TagRules

from .vocabulary import EOS, FIRST_BYTE
from .walks import backend, constraint, walk

REGEXES = (
    "a", "abc", "[a-c]{3}-hello", "(a|b)*c", "^a+$", r"\d{3}-\d{2}", r"\w+ \w+", r"[^\n]{1,5}", "(?:x|yz){2,3}",
    "a?b?c?d", "(?i)abc", r"\S+@\S+", "^(yes|no)$", r"0x[0-9a-f]{1,8}", r"[A-Z][a-z]+(, [A-Z][a-z]+)*",
    r"-?\d+(\.\d+)?([eE][+-]?\d+)?", r"\(\d\)", "[.]{3}", r"a\.b", r"\$\d+", r"(\d{1,3}\.){3}\d{1,3}", "caf\u00e9",
    "[\u4e00-\u4e10]{2}", "(a(b(c)?)?)?", r"\t|\n", "hello( world)?", r'"[^"\\]{0,6}"', r"[\[\]]{2}", "x{0}y",
    r"(?P<year>\d{4})", "a/b", "(ab|a)(c|bcd)", r"\\", "[-a]{2}", ".", "((a|b)(c|d)){2}", "#[0-9A-F]{6}", "(.|\n){3}",
    r"[\w.-]+", "a{2,}b", r"[^\w]{2}", r"[\W\d]x", r"\s\D",
)  # fmt: skip

LARK = {
    "sums": '?start: sum\n?sum: product | sum "+" product -> add\n?product: atom | product "*" atom\n'
    '?atom: NUMBER | "-" atom | "(" sum ")"\n%import common.NUMBER\n%import common.WS_INLINE\n%ignore WS_INLINE\n',
    "lists": 'start: "[" [item ("," item)*] "]"\nitem: WORD | start\nWORD: /[a-z]{1,4}/\n',
    "balanced": 'start: "(" start ")" start | "x"\n',
    "palindrome": 'start: "a" start "a" | "b" start "b" | "c"\n',
    "commands": 'start: (move | stop)+\nmove: "go " DIRECTION "\\n"\nstop: "stop\\n"\nDIRECTION: "left" | "right"\n',
    "case": 'start: "select"i " " COLUMN ("," COLUMN)*\nCOLUMN: /[a-z]{1,3}/\n',
    "repeated": 'start: item~2..3\nitem: "ab" | "c"\n',
}
GBNF: dict[str, tuple[str, str]] = {
    "number": ('root ::= "-"? [0-9]+ ("." [0-9]+)?', r"-?[0-9]+(\.[0-9]+)?"),
    "list": ('root ::= item+\nitem ::= "- " [a-z]+ "\\n"', r"(- [a-z]+\n)+"),
    "dashes": ('root ::= first-rule "!"\nfirst-rule ::= "a" | "b" # a comment', "[ab]!"),
    "bounds": ('root ::= [a-z]{2,3} " " [^a-z]{1}', r"(?s)[a-z]{2,3} [^a-z]"),
    "groups": ('root ::= ("a" | ("b" "c")*) "d"', "(a|(bc)*)d"),
    "escapes": (
        r'root ::= "\x41" "\u00e9\U0001F600" "\\" "\"" "\[" "\x22\x0a" # "\x42"',
        'A\u00e9\U0001f600\\\\"\\["\n',
    ),
    "classes": (r"root ::= [\x41-\x43] [^\x00-\x7f] [\u4e00-\u4e10]", "[A-C][^\x00-\x7f][\u4e00-\u4e10]"),
    "chess": (
        'root ::= "1. " move " " move "\\n"\nmove ::= (pawn | nonpawn | castle) [+#]?\n'
        'nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]\npawn ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?\n'
        'castle ::= "O-O" "-O"?',
        r"1\. [NBKQRa-hxO=+#1-8-]+ [NBKQRa-hxO=+#1-8-]+\n",
    ),
    "several lines": ('root ::= "x" (\n  "y" |\n  "z"\n)', "x(y|z)"),
}


def texts(kind: str, source: str, seeds: int = 8, **options: Any) -> list[str]:
    grammar = backend().compile(constraint(kind, source, **options))
    said = [walk(grammar, seed) for seed in range(seeds)]
    return [each.decode() for each in said if each is not None]


def follows(kind: str, source: str, text: str, **options: Any) -> bool:
    matcher = backend().compile(constraint(kind, source, **options)).start()
    try:
        matcher.consume([FIRST_BYTE + byte for byte in text.encode()])
    except MatcherError:
        return False
    return matcher.is_accepting


@pytest.mark.parametrize("pattern", REGEXES)
def test_regexes_match_as_a_whole(pattern: str) -> None:
    found = texts("regex", pattern)
    assert found
    assert all(re.fullmatch(pattern, text, re.ASCII) for text in found), found


@pytest.mark.parametrize("name", LARK)
def test_lark_grammars_parse_what_was_said(name: str) -> None:
    parser = lark.Lark(LARK[name])
    found = texts("lark", LARK[name])
    assert found
    for text in found:
        parser.parse(text)


@pytest.mark.parametrize("name", GBNF)
def test_gbnf_grammars(name: str) -> None:
    source, pattern = GBNF[name]
    found = texts("gbnf", source)
    assert found
    assert all(re.fullmatch(pattern, text) for text in found), found


def test_choices() -> None:
    choices = [
        "yes",
        "no",
        'a "quoted" one',
        "caf\u00e9 \U0001f600",
        "line\nbreak",
        "back\\slash",
        "yes, but",
        "{}",
        "<|end|>",
    ]
    found = texts("choice", json.dumps(choices), seeds=60)
    assert set(found) <= set(choices)
    assert len(set(found)) > 5
    assert all(follows("choice", json.dumps(choices), choice) for choice in choices)
    assert not follows("choice", json.dumps(choices), "ye")


def tag_rules(**options: Any) -> str:
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    tags = [Tag(begin="<f=one>", schema=number, end="</f>"), Tag(begin="<f=two>", schema={"type": "null"}, end="</f>")]
    return msgspec.json.encode(TagRules(triggers=["<f="], tags=tags, **options)).decode()


def test_tags_come_where_the_text_triggers_them() -> None:
    assert follows("tags", tag_rules(), "no tag at all")
    assert follows("tags", tag_rules(), "first <f=one>7</f> then <f=two>null</f> end")
    assert not follows("tags", tag_rules(), "<f=one>x")
    assert not follows("tags", tag_rules(), "<f=three>")
    assert not follows("tags", tag_rules(at_least_one=True), "no tag at all")
    assert follows("tags", tag_rules(at_least_one=True, stop_after_first=True), "text <f=two>null</f>")
    assert not follows("tags", tag_rules(stop_after_first=True), "<f=two>null</f> more")
    rules = TagRules(triggers=["<"], tags=[Tag(begin="f", schema=True, end="")])
    with pytest.raises(GrammarError) as refused:
        backend().compile(constraint("tags", msgspec.json.encode(rules).decode()))
    assert refused.value.path == ".tags[0].begin"


@pytest.mark.parametrize(
    ("kind", "source", "text"),
    [
        ("json_schema", '{"type":"boolean"}', "true"),
        ("regex", "a+", "aa"),
        ("choice", '["x"]', "x"),
        ("gbnf", 'root ::= "g"', "g"),
    ],
)  # fmt: skip
def test_a_constraint_may_begin_after_a_prelude(kind: str, source: str, text: str) -> None:
    assert follows(kind, source, f"I think <b>\n</think>{text}", after="</think>")
    assert not follows(kind, source, f"</think>{text}!", after="</think>")
    assert not follows(kind, source, text, after="</think>")


def test_a_prelude_may_end_with_a_special_token() -> None:
    grammar = backend().compile(constraint("regex", "ab", after="<|end|>"))
    matcher = grammar.start()
    matcher.consume([FIRST_BYTE + byte for byte in b"thought <|end|>"])
    assert not matcher.is_accepting  # spelled out, it is text
    matcher.consume([EOS, FIRST_BYTE + ord("a"), FIRST_BYTE + ord("b")])
    assert matcher.is_complete


REFUSED = [
    ("regex", "(("),
    ("regex", "a^b"),
    ("regex", r"(a)\1"),
    ("regex", "(?=a)b"),
    ("lark", "start: nowhere"),
    ("lark", 'begin: "a"'),
    ("lark", 'start: ("a"'),
    ("lark", "start: A\nA.2: /a/"),
    ("gbnf", "root ::= nowhere"),
    ("gbnf", 'root ::= "a'),
    ("gbnf", 'top ::= "a"'),
    ("gbnf", r'root ::= "\ud800"'),
]


@pytest.mark.parametrize(("kind", "source"), REFUSED)
def test_what_is_no_grammar_is_refused(kind: str, source: str) -> None:
    with pytest.raises(GrammarError):
        backend().compile(constraint(kind, source))


WITH_SCHEMAS = r"""
start: "a" %json {"const": "\u001b"} other // %json {"const": 1}
other: TEXT | %json
  {"type": "array", "items": {"enum": [1234567890123456789]}, "maxItems": 2} "!"
TEXT: "%json {" /%json \// # %json
"""


def test_schemas_within_lark_are_kept_to() -> None:
    accepted = ('a"\\u001b"[1234567890123456789]!', 'a"\\u001b"[]!', 'a"\\u001b"%json {%json /')
    assert [follows("lark", WITH_SCHEMAS, text) for text in accepted] == [True] * 3
    refused = ('a"\\u001b"[1234567890123456768]!', 'a""[]!')
    assert [follows("lark", WITH_SCHEMAS, text) for text in refused] == [False] * 2


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ('{"items": {"not": {}}}', r"line 2, the schema\.items\.not"),
        ('{"not": {}, "x-guidance": {"lenient": true}}', "x-guidance"),
        ('{"const": NaN}', "line 2: %json is followed by no JSON"),
        ("[1", "no JSON"),
        ('{"items":' * 3000 + "{}" + "}" * 3000, "nested"),
    ],
)
def test_schemas_within_lark_are_checked(schema: str, words: str) -> None:
    with pytest.raises(GrammarError, match=words):
        backend().compile(constraint("lark", f'start: "a"\n  | %json {schema}'))
