"""``hypic-rag serve``: the engine behind HTTP."""

import logging

from typer import BadParameter

from hypic_apps.cli import options
from hypic_rag.config import SETTINGS, Settings
from hypic_rag.errors import BadInput

log = logging.getLogger(__name__)


@options.with_settings(*(name for name in SETTINGS if name not in (*options.DOCUMENTS, "log_questions")))
def run(settings: Settings) -> None:
    """Serve an OpenAI-compatible API, collections of documents, and a web page."""
    from hypic_apps import older_store, session
    from hypic_apps.server.auth.bind_policy import check_exposure
    from hypic_apps.server.auth.keys import Keys
    from hypic_apps.server.listening import bound_socket
    from hypic_rag.collections.claim import claimed, private_folder
    from hypic_rag.collections.opening import server_folder
    from hypic_rag.retrieval import Embedder

    # What can be wrong is looked at before torch and the model, which take half a minute.
    folder, embedder = server_folder(), Embedder(settings.embedder or "default")
    keys = Keys(folder)
    try:
        check_exposure(settings, keys.exist)
    except BadInput as error:
        raise BadParameter(str(error)) from error  # nothing that trying again would mend
    finally:
        keys.close()
    private_folder(folder)
    claimed(folder, "serve").close()  # the application claims it for good
    listener = bound_socket(settings.host, settings.port)

    from hypic_apps.server.observability import logs

    logs.set_up(settings.log_format, settings.log_level)
    tell = session.say if settings.log_format == "text" else log.info
    older_store.heeding_older_store(settings, tell)
    embedder.folder  # noqa: B018  # finds it; what is in it is read with the first collection
    host, port = listener.getsockname()[:2]
    tell(f"loading the model {settings.model}")

    from hypic_apps.server import run as serving

    with session.open_engine(settings, folder / "segments", tell=tell) as engine:
        from hypic_apps.server.app_state import Service
        from hypic_apps.server.chat.engine_loop import EngineLoop

        loop = EngineLoop(engine, settings.max_running, settings.max_waiting)
        service = Service(settings, folder, engine, embedder, loop)
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        serving.serve(service, listener, lambda: tell(f"serving on {address}"))
