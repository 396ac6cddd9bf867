"""Fields that say what form an answer has to have, as OpenAI has them, and vLLM beside them."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from hypic_apps.server.errors import ApiError
from hypic_rag.engine.grammar import LONGEST, Grammar

Choices = Annotated[list[Annotated[str, Field(min_length=1, max_length=LONGEST)]], Field(min_length=1, max_length=1000)]


class NamedSchema(BaseModel):
    """strict: an answer is held to the schema in any case."""

    name: str = Field("", max_length=64)
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('give {"type": "json_schema", "json_schema": {"name": "...", "schema": {...}}}')
        return self


class FormatFields(BaseModel):
    """guided_json: a schema, or the text of one. Of all these one at most can be given."""

    response_format: ResponseFormat | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = Field(None, max_length=LONGEST)
    guided_choice: Choices | None = None

    @property
    def grammar(self) -> Grammar | None:
        """What the answer has to be like. Raises ApiError for several at once, BadInput."""
        given: dict[str, Grammar] = {}
        if self.response_format is not None and self.response_format.json_schema is not None:
            given["response_format"] = Grammar.json_schema(self.response_format.json_schema.schema_)
        elif self.response_format is not None and self.response_format.type == "json_object":
            given["response_format"] = Grammar.json_schema({"type": "object"})
        if self.guided_json is not None:
            schema = self.guided_json
            given["guided_json"] = (
                Grammar("json_schema", schema) if isinstance(schema, str) else Grammar.json_schema(schema)
            )
        if self.guided_regex is not None:
            given["guided_regex"] = Grammar("regex", self.guided_regex)
        if self.guided_choice is not None:
            given["guided_choice"] = Grammar.choice(self.guided_choice)
        if len(given) > 1:
            raise ApiError(400, f"give one of {' and '.join(given)}, not both", param=[*given][-1])
        return next(iter(given.values()), None)
