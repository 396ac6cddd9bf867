"""One short file a recurrence; ``FAMILIES`` has them by name."""

from hypic_rag.engine.families import deltanet, gdn, gla, kda, lightning, mamba1, mamba2, retnet, rwkv6, rwkv7
from hypic_rag.engine.families.family import Family

FAMILIES: dict[str, Family] = {
    file.FAMILY.name: file.FAMILY for file in (retnet, lightning, mamba2, gla, rwkv6, mamba1, deltanet, gdn, kda, rwkv7)
}
