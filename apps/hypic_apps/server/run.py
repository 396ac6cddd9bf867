"""Runs the application until it is told to stop, then ends it in good order."""

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn

from hypic_apps.server.app import create_app
from hypic_apps.server.app_state import Service

log = logging.getLogger(__name__)
LEEWAY_SECONDS = 5  # for answers on their way out, when the grace is over
KEEP_ALIVE_SECONDS = 75  # more than any Retry-After, so that who comes again finds the connection open
SWITCH_SECONDS = 0.0001  # after which a thread that computes in Python lets the event loop go on


def serve(service: Service, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve until told to stop. SIGTERM and SIGINT refuse new requests, let those under way finish within the grace
    time, and return; a second SIGINT does not wait."""
    grace = service.settings.grace_seconds
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.collect()
    gc.freeze()  # the search for garbage stops everybody; among what importing and loading left it is in vain
    config = uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(service.settings.trusted_proxies),
        forwarded_allow_ips=list(service.settings.trusted_proxies),
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=int(grace) + LEEWAY_SECONDS,
    )
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them once more when all is done
        signal.signal(number, lambda *_: None)
    _Server(config, service, on_ready).run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, service: Service, on_ready: Callable[[], None]):
        super().__init__(config)
        self._service, self._on_ready = service, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the loop end requests, each with an answer that says so, instead of cutting their connections."""
        loop, grace = self._service.loop, self._service.settings.grace_seconds
        log.info("stopping: requests under way have %g s; another Ctrl-C does not wait for them", grace)
        draining = asyncio.create_task(asyncio.to_thread(loop.close, grace))
        await super().shutdown(sockets)
        if self.force_exit:
            await asyncio.to_thread(loop.close, 0.0)
        await draining
