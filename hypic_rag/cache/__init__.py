"""What a cached segment is, and where it lives. Knows nothing of models."""

from typing import TYPE_CHECKING

from hypic_rag.lazy_import import lazy_exports

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
__getattr__ = lazy_exports(__name__, _EXPORTS)
