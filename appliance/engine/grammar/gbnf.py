"""Translates GBNF, the notation of llama.cpp's grammars, to Lark."""

import re

from llguidance.gbnf_to_lark import GbnfToLarkError, any_to_lark

from appliance.engine.grammar.interface import GrammarError

_PARTS = re.compile(r'"(?:[^"\\\n]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|#[^\n]*')  # texts, classes, comments
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[\[\]])")
_SPECIAL = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def gbnf_as_lark(source: str) -> str:
    """Translates a GBNF grammar. Raises GrammarError, with the line where the converter gives one."""
    try:
        lark: str = any_to_lark(_PARTS.sub(_with_plain_characters, source))
    except RecursionError as error:
        raise GrammarError("it is nested too deeply") from error
    except GbnfToLarkError as error:
        line = error.pos.text.count("\n", 0, error.pos.pos) + 1
        raise GrammarError(f"line {line}: it is no GBNF") from error
    except Exception as error:  # the converter raises nothing finer for the rest
        raise GrammarError("it is no GBNF") from error
    return lark


def _with_plain_characters(part: re.Match[str]) -> str:
    """Replaces escapes that the converter does not know by the characters they mean."""
    text = part[0]
    return _ESCAPE.sub(_character, text) if text.startswith('"') else text


def _character(escape: re.Match[str]) -> str:
    named = escape[1]
    if named in "[]":
        return named
    code = int(named[1:], 16)
    if code > 0x10FFFF or 0xD800 <= code < 0xE000:
        raise GrammarError(f"{escape[0]} is no character")
    return _SPECIAL.get(chr(code), chr(code))
