"""How long an answer may get where nobody said so: by what is asked. Imports nothing of this package.

The rule is by the first words of a sentence, in English; of other languages every question gets ``USUAL``.
"""

import re

SHORT, USUAL, LONG = 64, 256, 512  # tokens; a token is about three quarters of an English word
RULE = (
    f"{SHORT} for yes or no, who, when, where, how many; {LONG} for summaries, lists, descriptions, explanations; "
    f"else {USUAL}"
)
"""As it is told to users."""

_POLITE = r"(?:please,? |(?:can|could|would|will) you (?:please )?|i (?:want|need|would like) (?:you )?to )*"
_LONG = re.compile(
    rf"{_POLITE}(?:summari[sz]e|list|enumerate|describe|explain|outline|compare|contrast|discuss|elaborate|"
    r"tell me (?:\w+ )?about|(?:give|write|show|make|provide)(?: me)? (?:a|an|the) .*(?:summary|overview|list|"
    r"description|explanation|outline|comparison|report)|what are (?:all|the (?:main|key|differences|steps|reasons)))\b"
    r"|.*\b(?:in detail|step by step|at length)\b",
    re.IGNORECASE,
)
_SHORT = re.compile(
    r"(?:and |so |but )?(?:"
    r"(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would|should|may|might|must|am|isn['’]t|aren['’]t|"
    r"wasn['’]t|weren['’]t|don['’]t|doesn['’]t|didn['’]t)"
    r"|(?:at |by |from |in |on |of |for |with |to |since |until )?(?:whom?|whose|when|where"
    r"|how (?:many|much|old|long|far|tall|high|big|large|often|heavy|wide|deep|fast|late|soon)"
    r"|(?:what|which) (?:year|month|day|date|time|hour|number|amount|percentage|share|age|price|colou?r|name|country|"
    r"city|currency)))\b",
    re.IGNORECASE,
)
_MORE = re.compile(r"\b(?:why|how (?!many|much|old|long|far)\w+|who (?:are|were)|both|each|all|every)\b", re.IGNORECASE)
"""In a question that begins as a short one: it asks for more than one thing."""


def answer_tokens(question: str) -> int:
    """Return how many tokens the answer to a question may have: SHORT, USUAL or LONG.

    LONG where any of its sentences asks for a long answer, SHORT where the last asks for a short one.
    """
    sentences = [sentence.strip(" \t\"'“”‘(") for sentence in re.split(r"(?<=[.?!;:])\s+|\n+", question)]
    sentences = [sentence for sentence in sentences if sentence]
    if any(_LONG.match(sentence) for sentence in sentences):
        return LONG
    if sentences and _SHORT.match(sentences[-1]) and not _MORE.search(sentences[-1]):
        return SHORT
    return USUAL
