"""What a HypicLLM was made of, as plain values: to be written down, and made of again in another process."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from hypic_rag.cache import SegmentCache
from hypic_rag.engine import Policy


def recipe(model: str, policy: Policy | None, options: dict[str, Any]) -> dict[str, Any]:
    """Write down how a HypicLLM was made. options: those of a new engine that were given. Folders become absolute; a
    device or dtype of torch its name."""
    folder = Path(model).expanduser()
    plain = {
        name: value if isinstance(value, int) else str(value).removeprefix("torch.") for name, value in options.items()
    }
    return {
        **plain,
        **({"cache": _of_cache(options["cache"])} if "cache" in options else {}),
        "model": str(folder.resolve()) if folder.is_dir() else model,
        "policy": None if policy is None else asdict(policy),
    }


def options_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return what HypicLLM takes to be made so again; opens the cache."""
    options, policy = dict(recipe), recipe["policy"]
    if policy is not None:
        options["policy"] = Policy(**{**policy, "isolation_prefix": tuple(policy["isolation_prefix"])})
    if "cache" in recipe:
        options["cache"] = SegmentCache.open(**recipe["cache"])
    return options


def _of_cache(cache: SegmentCache) -> dict[str, Any]:
    """Return what opens the cache again; one in memory alone begins empty."""
    disk, remote = cache.disk, cache.remote
    return {
        "folder": None if disk is None else str(disk.folder.resolve()),
        "host_budget": cache.host.budget,
        "disk_budget": None if disk is None else disk.budget,
        "remote": None if remote is None else remote.address,
    }
