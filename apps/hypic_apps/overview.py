"""What is there: the model, the store's index, the cache by tier; as fields and as text."""

from dataclasses import asdict
from typing import Any

from hypic_apps import session
from hypic_rag.collections.opening import Collection
from hypic_rag.collections.rows import sums
from hypic_rag.collections.search import CollectionSearch
from hypic_rag.config import Settings, format_budget, format_bytes, home
from hypic_rag.engine import SegmentEngine
from hypic_rag.engine.calibration import policy_text
from hypic_rag.rag.order_calibration import order_in_force
from hypic_rag.retrieval import Store


def fields(settings: Settings) -> dict[str, Any]:
    """Describe what is there. ``store`` and ``cache`` are None where nothing was ingested, ``collection`` where a store
    is asked for. Raises StoreMismatch as ``ask`` would."""
    if settings.collection is None and not session.is_there(settings):
        with session.open_engine(settings) as engine:
            return {**_about(settings, engine), "collection": None, "store": None, "cache": None}
    with session.open_search(settings) as (engine, store, search):
        tiers = engine.cache.stats().tiers
        cache = {
            name: {
                "n_entries": tier.n_entries,
                "n_bytes": tier.nbytes,
                "budget_bytes": tier.budget,
                "trouble": tier.trouble,
            }
            for name, tier in tiers.items()
        }
        collection = _collection(search.collection) if isinstance(search, CollectionSearch) else None
        return {**_about(settings, engine), "collection": collection, "store": _store(store), "cache": cache}


def text(fields: dict[str, Any]) -> str:
    """Write the same for people."""
    model, store = fields["model"], fields["store"]
    layers = " + ".join(f"{n} {family}" for family, n in model["families"].items())
    rows = [
        ("home", fields["home"]),
        (
            "model",
            f"{model['name']}, {layers} layers, context {model['context_length']:,} tokens, "
            f"{model['dtype']} on {model['device']} (fingerprint {model['fingerprint'][:12]})",
        ),
        ("policy", f"{fields['policy']['text']}; {fields['policy']['why']}"),
        *([("", fields["policy"]["reason"])] if fields["policy"]["reason"] else []),
        ("order", f"{fields['order']['name']}; {fields['order']['why']}"),
        ("codec", fields["codec"]),
    ]
    if store is None:
        rows.append(("documents", "none yet: hypic-rag ingest PATH..."))
    else:
        if collection := fields["collection"]:
            files = f"{collection['n_ready']} of {collection['n_files']} files ready"
            if collection["n_ready"] < collection["n_files"]:
                files += "; others are under way or failed: ingest again to go on with those of hypic-rag ingest"
            rows.append(("collection", f"{collection['name']} of the tenant {collection['tenant']}, {files}"))
        rows.append(("store", store["folder"]))
        rows.append(
            (
                "index",
                f"{store['n_documents']} documents, {store['n_chunks']} chunks of up to "
                f"{store['chunk_tokens']} tokens, embedded by {store['embedder']}",
            )
        )
    for name, tier in (fields["cache"] or {}).items():
        used = f"{format_bytes(tier['n_bytes'])} of {format_budget(tier['budget_bytes'])}"
        rows.append((f"cache, {name}", f"{tier['n_entries']} segments, {used}"))
        if tier["trouble"]:
            rows.append(("", tier["trouble"]))
    return "\n".join(f"{name:<12} {value}" for name, value in rows)


def _about(settings: Settings, engine: SegmentEngine) -> dict[str, Any]:
    """codec: by which segments are stored and looked up now; the tiers may hold those of others too."""
    order, why = order_in_force(engine.fingerprint, settings.order)
    about = {"home": str(home()), "model": _model(engine), "policy": _policy(settings, engine)}
    return {**about, "order": {"name": order, "why": why}, "codec": engine.codec.name}


def _model(engine: SegmentEngine) -> dict[str, Any]:
    return {
        "name": engine.model_name,
        "fingerprint": engine.fingerprint,
        "families": engine.families,
        "context_length": engine.context_length,
        "dtype": str(engine.model.dtype).removeprefix("torch."),
        "device": str(engine.device),
    }


def _policy(settings: Settings, engine: SegmentEngine) -> dict[str, Any]:
    """calibrated_on: None where the model has no calibration; it is in force but for what is in ``given``."""
    found = session.in_force(settings, engine)
    return {
        **asdict(found.policy),
        "text": policy_text(found.policy),
        "why": found.why,
        "given": list(found.given),
        "calibrated_on": found.calibration.date if found.calibration else None,
        "reason": found.calibration.reason if found.calibration and not found.given else None,
    }


def _collection(collection: Collection) -> dict[str, Any]:
    with collection.database.reading() as db:
        files = sums(db, collection.id)
    return {
        "name": collection.name,
        "tenant": collection.tenant.id,
        "id": collection.id,
        "namespace": collection.namespace,
        **files,
    }


def _store(store: Store) -> dict[str, Any]:
    n_documents, n_chunks = store.counts()
    return {
        "folder": str(store.folder),
        "n_documents": n_documents,
        "n_chunks": n_chunks,
        "chunk_tokens": store.manifest.chunk_tokens,
        "embedder": store.manifest.embedder,
        "model": store.manifest.model,
    }
