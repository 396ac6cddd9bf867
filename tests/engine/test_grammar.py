"""Answers of a given form, from random weights: every one that ends has the form, by validators that are not ours."""

import json
import re
from typing import Any

import jsonschema
import pytest

from hypic_rag import SegmentEngine
from hypic_rag.engine import Sampling
from hypic_rag.engine.detokenizer import decoded
from hypic_rag.engine.grammar import Grammar, GrammarMatcher
from hypic_rag.engine.token_bytes import TokenBytes
from hypic_rag.errors import BadInput, GrammarTooComplex
from hypic_rag.prompt import Prompt

WORD = {"type": "string", "maxLength": 4}
DIGIT = {"type": "integer", "minimum": -9, "maximum": 120}
PERSON = {
    "type": "object",
    "properties": {
        "name": WORD,
        "age": DIGIT,
        "role": {"enum": ["clerk", "keeper", None]},
        "tags": {"type": "array", "items": WORD, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {  # all of them bounded, so that each answer has an end
    "an object": PERSON,
    "one of several": {"anyOf": [DIGIT, {"const": "none"}, {"type": "boolean"}]},
    "a definition": {
        "$defs": {"pair": {"type": "array", "prefixItems": [DIGIT, WORD], "items": False, "minItems": 2}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/pair"}, "b": {"$ref": "#/$defs/pair"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "a date and a pattern": {
        "type": "array",
        "prefixItems": [{"type": "string", "format": "date"}, {"type": "string", "pattern": "^[a-f]{2,4}$"}],
        "items": False,
        "minItems": 2,
    },
    "nested": {
        "type": "object",
        "properties": {"people": {"type": "array", "items": PERSON, "minItems": 1, "maxItems": 2}},
        "required": ["people"],
        "additionalProperties": False,
    },
}


def asked(engine: SegmentEngine) -> Prompt:
    return engine.format.prompt("Who built it?", [("Lighthouse", "It was built in 1871 by Ada Marrow. " * 3)])


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
def test_every_answer_validates(gdn_engine: SegmentEngine, schema: dict[str, Any]) -> None:
    """Greedy and drawn at temperatures at which random weights write anything at all."""
    prompt, grammar = asked(gdn_engine), Grammar.json_schema(schema)
    texts = set()
    for temperature, seed in ((0.0, None), (1.0, 1), (20.0, 2)):
        found = gdn_engine.generate(prompt, Sampling(600, temperature, seed=seed, grammar=grammar))
        assert found.finish_reason == "stop", found.text
        jsonschema.validate(json.loads(found.text), schema, format_checker=jsonschema.FormatChecker())
        texts.add(found.text)
    assert len(texts) > 1
    with pytest.raises(ValueError, match="Expecting"):
        json.loads(gdn_engine.generate(prompt, Sampling(20)).text)


def test_regular_expressions_and_choices(gdn_engine: SegmentEngine) -> None:
    prompt, expression = asked(gdn_engine), r"(yes|no), [A-Z][a-z]{2,5} \d{4}\."
    choices = ["Ada Marrow", 'nobody "at all"', "näher\n"]
    for seed in range(6):
        drawn = Sampling(60, 5.0, seed=seed, grammar=Grammar("regex", expression))
        assert re.fullmatch(expression, gdn_engine.generate(prompt, drawn).text)
        chosen = Sampling(60, 5.0, seed=seed, grammar=Grammar.choice(choices))
        assert gdn_engine.generate(prompt, chosen).text in choices


@pytest.mark.parametrize("so_far", ["", "ma"])
def test_what_may_come_next_by_trying_every_token(gdn_engine: SegmentEngine, so_far: str) -> None:
    choices = ["yes", "no", "maybe so", "mad"]
    tokenizer = gdn_engine.tokenizer
    matcher = gdn_engine._grammars.matcher(Grammar.choice(choices), "")
    for token in gdn_engine.format.encode(so_far):
        matcher.take(token)
    texts = [decoded(tokenizer, [token]) for token in range(len(tokenizer))]
    want = [t for t, text in enumerate(texts) if text and any(c.startswith(so_far + text) for c in choices)]
    assert matcher.allowed().nonzero().flatten().tolist() == want
    assert len(want) >= 2


def test_others_in_the_pass_are_left_alone(gdn_engine: SegmentEngine) -> None:
    prompt = asked(gdn_engine)
    plain = gdn_engine.generate(prompt, Sampling(10)).token_ids
    ids = [
        gdn_engine.add_request(prompt, Sampling(10)),
        gdn_engine.add_request(prompt, Sampling(200, grammar=Grammar.json_schema(PERSON))),
    ]
    done = finished(gdn_engine)
    assert done[ids[0]].generation.token_ids == plain
    jsonschema.validate(json.loads(done[ids[1]].generation.text), PERSON)


def finished(engine: SegmentEngine) -> dict[int, Any]:
    done = {}
    while engine.has_work:
        done |= {one.request_id: one for one in engine.step() if one.generation or one.error}
    return done


@pytest.mark.parametrize("verb", ["allowed", "take"])
def test_one_that_cannot_be_followed_ends_alone(
    gdn_engine: SegmentEngine, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    prompt, calls = asked(gdn_engine), []
    plain = gdn_engine.generate(prompt, Sampling(10)).token_ids
    original = getattr(GrammarMatcher, verb)

    def failing(self: GrammarMatcher, *given: Any) -> Any:
        calls.append(verb)
        if len(calls) == 3:
            raise GrammarTooComplex("the form cannot be followed")
        return original(self, *given)

    monkeypatch.setattr(GrammarMatcher, verb, failing)
    sampling = Sampling(200, grammar=Grammar.json_schema(PERSON))
    ids = [gdn_engine.add_request(prompt, sampling), gdn_engine.add_request(prompt, Sampling(10))]
    done = finished(gdn_engine)
    assert isinstance(done[ids[0]].error, GrammarTooComplex)
    assert done[ids[1]].generation.token_ids == plain
    calls.clear()
    with pytest.raises(GrammarTooComplex, match="cannot be followed"):
        gdn_engine.generate(prompt, sampling)
    assert gdn_engine.generate(prompt, Sampling(10)).token_ids == plain and not gdn_engine.has_work


def test_a_token_that_is_not_allowed_is_told(gdn_engine: SegmentEngine) -> None:
    matcher = gdn_engine._grammars.matcher(Grammar.choice(["yes"]), "")
    with pytest.raises(GrammarTooComplex, match="simpler"):
        matcher.take(gdn_engine.format.encode("no")[0])


def test_bytes_of_tokens_make_up_the_text(gdn_engine: SegmentEngine) -> None:
    """Of all tokens of the vocabulary, and of a text whose characters are spread over tokens."""
    tokenizer = gdn_engine.tokenizer
    of_tokens = TokenBytes(tokenizer)
    texts = of_tokens.texts(range(len(tokenizer)))
    found = [of_tokens.of(token, text) for token, text in enumerate(texts)]
    assert None not in found
    for text in ("naïve 🦔 Žižkov\n\ttab", "".join(map(chr, range(32, 1500)))):
        ids = gdn_engine.format.encode(text)
        assert b"".join(found[token] or b"" for token in ids).decode() == decoded(tokenizer, ids) == text


REFUSED: dict[str, tuple[Any, str]] = {
    "no such type": (lambda: Grammar.json_schema({"type": "widget"}), "widget"),
    "a keyword that cannot be held to": (lambda: Grammar.json_schema({"not": {"type": "string"}}), "not"),
    "a reference to nothing": (lambda: Grammar.json_schema({"$ref": "#/nope"}), "nope"),
    "a reference to elsewhere": (lambda: Grammar.json_schema({"$ref": "http://127.0.0.1/schema"}), "127.0.0.1"),
    "no schema": (lambda: Grammar("json_schema", "true"), "object"),
    "no JSON": (lambda: Grammar("json_schema", "{"), "cannot be read"),
    "no expression": (lambda: Grammar("regex", "(a"), "unclosed"),
    "no choice": (lambda: Grammar.choice([]), "at least one choice"),
    "far too long": (lambda: Grammar("regex", "a" * 100_001), "100,000"),
    "another form": (lambda: Grammar("yaml", ""), "yaml"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("make, said", REFUSED.values(), ids=REFUSED)
def test_forms_that_are_refused(gdn_engine: SegmentEngine, make: Any, said: str) -> None:
    with pytest.raises(BadInput, match=re.escape(said)):
        gdn_engine.check_prompt(asked(gdn_engine), gdn_engine.policy, Sampling(grammar=make()))


@pytest.mark.parametrize("fields", [{"min_tokens": 1}, {"ignore_eos": True}])
def test_an_end_of_its_own(fields: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="leave out"):
        Sampling(grammar=Grammar.choice(["a"]), **fields)
