"""Values by a JSON schema, as it says or with something else in some places."""

from typing import Any

from hypothesis import strategies as st

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=40)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
WRONG = 15  # per cent of the places


class Schemas:
    """document: OpenAPI's, where the references lead."""

    def __init__(self, document: dict[str, Any]):
        self.document = document

    def values(self, schema: dict[str, Any], wrong: int = 0) -> st.SearchStrategy[Any]:
        """wrong: of a hundred places in the value, how many have anything at all in them."""
        right = st.deferred(lambda: self._values(schema, wrong))
        return st.integers(0, 99).flatmap(lambda drawn: ANYTHING if drawn >= 100 - wrong else right)

    def _values(self, schema: dict[str, Any], wrong: int) -> st.SearchStrategy[Any]:
        if "$ref" in schema:
            found: Any = self.document
            for step in schema["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            return self._values(found, wrong)
        if "const" in schema:
            return st.just(schema["const"])
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        if "anyOf" in schema:
            return st.one_of([self._values(one, wrong) for one in schema["anyOf"]])
        match schema.get("type"):
            case "object":
                return self._objects(schema, wrong)
            case "array":
                most = min(schema.get("maxItems", 3), 3)
                items = self.values(schema.get("items", {}), wrong)
                return st.lists(
                    items, min_size=schema.get("minItems", 0), max_size=max(most, schema.get("minItems", 0))
                )
            case "string":
                return st.text(st.characters(), min_size=schema.get("minLength", 0), max_size=40)
            case "integer":
                low, high = schema.get("minimum"), schema.get("maximum")
                most = schema.get("exclusiveMaximum")
                return st.integers(low, most - 1 if most is not None else high)
            case "number":
                low = schema.get("exclusiveMinimum", schema.get("minimum"))
                return st.floats(low, schema.get("maximum"), exclude_min="exclusiveMinimum" in schema, width=32)
            case "boolean":
                return st.booleans()
            case "null":
                return st.none()
        return ANYTHING

    def _objects(self, schema: dict[str, Any], wrong: int) -> st.SearchStrategy[dict[str, Any]]:
        fields = {name: self.values(one, wrong) for name, one in schema.get("properties", {}).items()}
        needed = {name: fields.pop(name) for name in schema.get("required", ()) if name in fields}
        whole = st.fixed_dictionaries(needed, optional=fields)
        return whole if not wrong else st.integers(0, 99).flatmap(lambda n: st.just({}) if n < wrong // 3 else whole)
