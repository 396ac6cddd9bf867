"""What a cached segment is, and where it lives. Knows nothing of models."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypic_rag.cache.cache import SegmentCache
    from hypic_rag.cache.codec import CODECS, Codec, codec_named
    from hypic_rag.cache.entry import Entry, LayerEntry
    from hypic_rag.cache.key import FORMAT_VERSION, SegmentKey
    from hypic_rag.cache.report import CacheStats, Hit, Miss, Problem, Stored, TierStats
    from hypic_rag.cache.tiers.device import DevicePool
    from hypic_rag.cache.tiers.disk import DiskTier
    from hypic_rag.cache.tiers.host import HostTier

_EXPORTS = {
    "CODECS": "codec",
    "FORMAT_VERSION": "key",
    "CacheStats": "report",
    "Codec": "codec",
    "DevicePool": "tiers.device",
    "DiskTier": "tiers.disk",
    "Entry": "entry",
    "Hit": "report",
    "HostTier": "tiers.host",
    "LayerEntry": "entry",
    "Miss": "report",
    "Problem": "report",
    "SegmentCache": "cache",
    "SegmentKey": "key",
    "Stored": "report",
    "TierStats": "report",
    "codec_named": "codec",
}

__all__ = [
    "CODECS",
    "FORMAT_VERSION",
    "CacheStats",
    "Codec",
    "DevicePool",
    "DiskTier",
    "Entry",
    "Hit",
    "HostTier",
    "LayerEntry",
    "Miss",
    "Problem",
    "SegmentCache",
    "SegmentKey",
    "Stored",
    "TierStats",
    "codec_named",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that who looks at a cache's folder only loads no torch."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hypic_rag.cache' has no attribute {name!r}")
    return getattr(import_module(f"hypic_rag.cache.{_EXPORTS[name]}"), name)
