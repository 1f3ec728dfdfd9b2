"""The four services, their capabilities and the admin as one app, on one port."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from psycopg import AsyncConnection
from psycopg.rows import DictRow, dict_row
from psycopg_pool import AsyncConnectionPool
from starlette.exceptions import HTTPException
from starlette.responses import Response

from agentic_loop.sandbox import admin, capabilities, notifications, payments, policy_store, refunds
from agentic_loop.sandbox.clock import SandboxClock, real_time
from agentic_loop.sandbox.errors import ServiceError
from agentic_loop.sandbox.faults import ANY_OPERATION
from agentic_loop.sandbox.service import ServiceRoute, invalid_request, operation_of
from agentic_loop.sandbox.settings import Service
from agentic_loop.sandbox.world import World

SERVICE_ROUTERS = (payments.router, refunds.router, policy_store.router, notifications.router)

MAX_CONNECTIONS = 16
POOL_TIMEOUT_S = 15.0


def create_app(database_url: str, clock: Callable[[], datetime] = real_time) -> FastAPI:
    """The sandbox over a database, in which it makes schemas of its own (`sandbox_*`).

    Args:
        database_url: a Postgres database; only one sandbox may run on it at a time.
        clock: the base of the sandbox's clock; the admin can move the sandbox's time away from it.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncConnectionPool[AsyncConnection[DictRow]](
            database_url,
            kwargs={"row_factory": dict_row},
            min_size=1,
            max_size=MAX_CONNECTIONS,
            timeout=POOL_TIMEOUT_S,
            open=False,
        ) as pool:
            await pool.wait(POOL_TIMEOUT_S)
            world = World(pool, SandboxClock(clock))
            await world.prepare()
            app.state.world = world
            yield

    app = FastAPI(title="Agentic Loop sandbox", lifespan=lifespan)
    for router in (*SERVICE_ROUTERS, capabilities.router, admin.router):
        app.include_router(router)
    app.state.operations = _operations(SERVICE_ROUTERS)
    app.add_exception_handler(ServiceError, _refuse)
    app.add_exception_handler(RequestValidationError, _refuse_shape)
    app.add_exception_handler(HTTPException, _refuse_path)
    return app


def _operations(routers: tuple[APIRouter, ...]) -> dict[Service, set[str]]:
    """By service, every name under which a fault can be armed."""
    names: dict[Service, set[str]] = {service: {ANY_OPERATION} for service in Service}
    for router in routers:
        for route in router.routes:
            if isinstance(route, ServiceRoute):
                names[route.service] |= {operation_of(route), route.name}
    return names


async def _refuse(request: Request, error: Exception) -> Response:
    if not isinstance(error, ServiceError):
        raise error
    return error.response()


async def _refuse_shape(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    return invalid_request(error).response()


async def _refuse_path(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    message = f"{request.method} {request.url.path}: {error.detail}. See /docs for what there is."
    return ServiceError(error.status_code, "no_such_operation", message).response()
