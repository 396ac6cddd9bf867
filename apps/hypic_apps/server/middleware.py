"""What every request passes on its way to a route, in this order.

All are plain ASGI: what Starlette calls BaseHTTPMiddleware runs the route in a task of its own, which delays a stream
and hides that the client has gone.
"""

from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware import Middleware

from hypic_apps.server.app_state import Service
from hypic_apps.server.auth.tenants import OPEN, Authentication
from hypic_apps.server.observability.logs import ID_HEADER, Logged
from hypic_apps.server.request_limits import BodyLimit, OneByOne, SameSite, SecurityHeaders, UnderPath


def middleware(service: Service) -> list[Middleware]:
    """List the middleware, the outermost first."""
    settings, keys = service.settings, service.keys
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origins,
        allow_methods=["GET", "POST", "PATCH", "DELETE"],
        allow_headers=["*"],  # OpenAI's own client sends a dozen of its own
        expose_headers=[ID_HEADER, "Retry-After", "Warning"],
    )

    def asks_for_keys() -> bool:
        return not settings.no_keys and keys.exist

    under = [Middleware(UnderPath, settings.root_path)] if settings.root_path else []
    return [
        *under,
        Middleware(Logged, count=service.metrics.count_http),
        Middleware(OneByOne, at_once=OPEN),
        Middleware(SecurityHeaders),
        *([cors] if settings.allowed_origins else []),
        Middleware(SameSite, asks_for_keys, settings.allowed_origins, any_host=settings.no_keys),
        Middleware(Authentication, keys, service.usage, settings.no_keys, settings.metrics_open),
        Middleware(BodyLimit, settings.max_body, settings.max_upload),
    ]
