"""Which replica a prompt goes to."""

import json

from appliance.ray.prefixes import MAX_PIECES, PIECE_BYTES, SeenPrefixes, pieces_of


def body(text: str, model: str = "m", **more: object) -> bytes:
    return json.dumps({"model": model, "prompt": text, **more}).encode()


def test_prompts_that_begin_alike_have_the_first_pieces_in_common() -> None:
    one, two = (pieces_of(body("a" * 4 * PIECE_BYTES + end * 4 * PIECE_BYTES)) for end in "bc")
    common = sum(first == second for first, second in zip(one, two, strict=True))
    assert (len(one), common) == (8, 4)


def test_other_fields_do_not_count_and_the_model_does() -> None:
    text = "a" * 3 * PIECE_BYTES
    assert pieces_of(body(text)) == pieces_of(body(text, temperature=1, stream=True))
    assert not set(pieces_of(body(text))) & set(pieces_of(body(text, model="adapter")))


def test_a_conversation_that_goes_on_keeps_its_pieces() -> None:
    messages = [{"role": "user", "content": "x" * 300}]
    first = pieces_of(json.dumps({"messages": messages}).encode())
    messages += [{"role": "assistant", "content": "y" * 300}, {"role": "user", "content": "z"}]
    second = pieces_of(json.dumps({"messages": messages}).encode())
    assert len(first) == 2
    assert second[:2] == first


def test_what_is_no_prompt_has_no_pieces() -> None:
    assert [pieces_of(each) for each in (b"", b"{", b"[1]", b"\xff", body("short"))] == [()] * 5
    assert len(pieces_of(body("a" * (MAX_PIECES + 9) * PIECE_BYTES))) == MAX_PIECES


def test_the_longest_known_prefix_wins_until_its_replica_has_too_much_to_do() -> None:
    seen: SeenPrefixes[str] = SeenPrefixes()
    seen.note([b"1", b"2"], "a")
    seen.note([b"1", b"3"], "b")
    assert seen.choose([b"1", b"2"], {"a": 1, "b": 1, "c": 1}) == "a"
    assert seen.choose([b"1", b"9"], {"a": 1, "b": 1, "c": 1}) == "b"  # the last who had it
    assert seen.choose([b"1", b"2"], {"a": 9, "b": 2, "c": 0}) == "c"
    assert seen.choose([], {"a": 3, "b": 1, "c": 2}) == "b"
    assert seen.choose([b"1", b"2"], {"b": 1, "c": 1}) == "b"  # a is gone, and b has the beginning
    assert seen.choose([b"1"], {}) is None


def test_the_oldest_prefixes_are_forgotten() -> None:
    seen: SeenPrefixes[str] = SeenPrefixes(max_entries=2)
    for piece in (b"1", b"2", b"3"):
        seen.note([piece], "b")
    loads = {"a": 0, "b": 0}
    assert [seen.choose([piece], loads) for piece in (b"1", b"2", b"3")] == ["a", "b", "b"]
