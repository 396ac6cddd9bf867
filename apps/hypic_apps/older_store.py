"""HOME/stores/default: where commands that named no place put documents before collections were the home of them."""

from collections.abc import Callable
from dataclasses import replace

from hypic_rag.config import Settings, store_folder
from hypic_rag.paths import exists

NAME = "default"
REMEDY = f"hypic-rag collections add-store {NAME}"


def heeding_older_store(settings: Settings, tell: Callable[[str], None] | None = None) -> Settings:
    """Return the settings, with that store where they name no place and its documents are in no collection yet.

    Says (to ``tell``, else on stderr) that there is such a store, and what makes it a collection. Raises BadInput.
    """
    folder = store_folder(NAME)
    if settings.store or settings.collection or settings.tenant != Settings().tenant or not exists(folder):
        return settings
    from hypic_apps import session

    tell = tell or session.say
    if session.is_there(settings):
        tell(f"{folder} is not asked: {REMEDY} copies what the collection has not; or delete it")
        return settings
    tell(f"documents are in the store {folder}, which serve does not see: {REMEDY} makes a collection of it")
    return replace(settings, store=NAME)
