"""Whose a collection is, and the namespace of its segments."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tenant:
    """id: letters, digits and dashes; names a folder, a metrics label and the salt in the keys of its segments."""

    id: str

    def namespace(self, collection: str | None = None) -> str:
        """Return the namespace of its segments: those of a collection, or of documents that came with a request."""
        return f"{self.id}/{collection or ''}"


def tenant_of(namespace: str) -> str:
    """Return the id in what ``Tenant.namespace`` returned."""
    return namespace.partition("/")[0]
