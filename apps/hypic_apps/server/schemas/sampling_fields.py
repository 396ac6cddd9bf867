"""Fields that decide how an answer is drawn, as OpenAI has them, and vLLM beside them."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema

from hypic_rag.engine.policy import MOST_LOGPROBS

MOST_BIASED, MOST_STOP_IDS = 1024, 128
FAST = Field(fail_fast=True)
"""Of a list: what is wrong with the first of a million values is all that anybody is told."""


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Words = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    FAST,
    Field(max_length=16),
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "maxItems": 16}]}),
]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Bias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MOST_BIASED),
    WithJsonSchema({"type": "object", "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100}}),
]


class SamplingFields(BaseModel):
    """None takes the server's setting, where there is one, and else nothing is done.

    n: answers to the one prompt. top_k: -1 and 0 are no limit. logit_bias: by token ids.
    """

    n: int | None = Field(None, ge=1, le=128, strict=True)
    temperature: float | None = Field(None, ge=0, le=100)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, lt=2**31)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=0, lt=2**63)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0, le=100)
    logit_bias: Bias | None = None
    stop: Words | None = None
    stop_token_ids: Annotated[list[TokenId], FAST, Field(max_length=MOST_STOP_IDS)] | None = None
    min_tokens: int | None = Field(None, ge=0, lt=2**31)
    ignore_eos: bool | None = None

    @property
    def n_logprobs(self) -> int | None:
        """How many tokens to tell of each place, beside the one that is drawn; None: tell nothing."""
        return None

    def more_sampling(self) -> dict[str, Any]:
        """Return what is given of the fields that no setting of the server has, for ``Sampling``."""
        given = {
            "stop": tuple(self.stop or ()),
            "top_k": max(0, self.top_k or 0),
            "min_p": self.min_p,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "repetition_penalty": self.repetition_penalty,
            "logit_bias": tuple((self.logit_bias or {}).items()),
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "min_tokens": self.min_tokens,
            "ignore_eos": self.ignore_eos,
            "stop_repetition": not self.ignore_eos,  # which asks to go on whatever comes
            "logprobs": self.n_logprobs,
        }
        return {name: value for name, value in given.items() if value is not None}


def _count(value: object) -> object:
    return None if value is False else value


ChatTop = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]
TextTop = Annotated[int, Field(ge=0, le=MOST_LOGPROBS), BeforeValidator(_count)]
