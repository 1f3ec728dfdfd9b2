"""What every service does with every request: log it, let a fault hit it, check the tenant, answer in JSON."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, ClassVar, assert_never

from fastapi import APIRouter, Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from psycopg import DataError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from agentic_loop.sandbox import request_log
from agentic_loop.sandbox.errors import ServiceError
from agentic_loop.sandbox.faults import ArmedFault, Drop, FaultKind, Hang, cut_short, fault_for
from agentic_loop.sandbox.request_log import Arrival
from agentic_loop.sandbox.settings import Service
from agentic_loop.sandbox.world import World, world_of

MAX_BODY_BYTES = 100_000

Handler = Callable[[Request], Coroutine[None, None, Response]]


@dataclass(frozen=True)
class Caller:
    """Who asks, and how: the tenant, the idempotency key if one came, and how long the service is to take."""

    tenant: str
    idempotency_key: str | None
    slow_s: float


class ServiceRoute(APIRoute):
    """A route of one service. FastAPI builds the inner handler; this wraps it."""

    service: ClassVar[Service]

    def get_route_handler(self) -> Handler:
        """The handler that FastAPI installs for the route."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await _serve(request, inner, self)

        return handle


def service_router(service: Service) -> APIRouter:
    """A router whose routes belong to that service."""
    route_class = type("RouteOf" + service.name.title(), (ServiceRoute,), {"service": service})
    return APIRouter(route_class=route_class, tags=[service.value])


def operation_of(route: ServiceRoute) -> str:
    """The name of a route's operation: `POST /refunds`."""
    return f"{min(route.methods or {'GET'})} {route.path}"


async def _serve(request: Request, inner: Handler, route: ServiceRoute) -> Response:
    world = world_of(request)
    arrival = await _arrival(request, route, world)
    async with world.pool.connection() as connection:
        entry_id = await request_log.append(connection, arrival)
        fault = await fault_for(connection, route.service, arrival.operation, route.name)

    async def answer() -> Response:
        return await _answer(request, inner, world, fault)

    response = await _under(fault, world, answer)
    status = None if isinstance(response, Drop) else response.status_code
    async with world.pool.connection() as connection:
        await request_log.conclude(connection, entry_id, status, fault.kind if fault else None)
    return response


async def _under(fault: ArmedFault | None, world: World, answer: Callable[[], Awaitable[Response]]) -> Response:
    """The response under a fault. Whatever `answer` commits is committed when it returns."""
    if fault is None:
        return await answer()
    match fault.kind:
        case FaultKind.SLOW:
            return await answer()
        case FaultKind.TIMEOUT_BEFORE_COMMIT:
            return Hang(world, fault.delay_s)
        case FaultKind.DROP_BEFORE_COMMIT:
            return Drop()
        case FaultKind.ERROR_BEFORE_COMMIT:
            return ServiceError(503, "unavailable", "The service is not available; try again later.").response()
        case FaultKind.TIMEOUT_AFTER_COMMIT:
            await answer()
            return Hang(world, fault.delay_s)
        case FaultKind.DROP_AFTER_COMMIT:
            await answer()
            return Drop()
        case FaultKind.ERROR_AFTER_COMMIT:
            await answer()
            message = "Something broke; whether the request took effect is not known here."
            return ServiceError(500, "internal_error", message).response()
        case FaultKind.GARBAGE:
            return cut_short(await answer())
        case _:
            assert_never(fault.kind)


async def _answer(request: Request, inner: Handler, world: World, fault: ArmedFault | None) -> Response:
    slow_s = fault.delay_s if fault is not None and fault.kind is FaultKind.SLOW else 0.0
    try:
        caller = _caller(request, slow_s)
        if slow_s and caller.idempotency_key is None:
            # A write is slow inside its transaction instead, where its key is in flight.
            await world.pause(slow_s)
        request.state.caller = caller
        return await inner(request)
    except ServiceError as refusal:
        return refusal.response()
    except RequestValidationError as invalid:
        return invalid_request(invalid).response()
    except HTTPException as unreadable:
        return ServiceError(unreadable.status_code, "unreadable_request", str(unreadable.detail)).response()
    except (DataError, UnicodeEncodeError):
        message = "Correct the request: a text contains characters that cannot be stored, or a number is too large."
        return ServiceError(422, "invalid_request", message).response()


def invalid_request(invalid: RequestValidationError) -> ServiceError:
    """The refusal of a request that does not have the declared shape, naming each field that is wrong."""
    problems = "; ".join(
        f"{'.'.join(map(str, problem['loc'])) or 'request'}: {problem['msg']}" for problem in invalid.errors()
    )
    return ServiceError(422, "invalid_request", f"Correct the request: {problems}.")


def _caller(request: Request, slow_s: float) -> Caller:
    tenant = request.headers.get("x-tenant", "").strip()
    if not tenant:
        raise ServiceError(400, "tenant_missing", "Send the tenant for whom you ask in the X-Tenant header.")
    return Caller(tenant, request.headers.get("idempotency-key"), slow_s)


async def _arrival(request: Request, route: ServiceRoute, world: World) -> Arrival:
    _bound_body(request)
    return Arrival(
        service=route.service,
        operation=operation_of(route),
        method=request.method,
        path=_storable(request.url.path),
        query=request.url.query,
        tenant=request.headers.get("x-tenant"),
        request_id=request.headers.get("x-request-id"),
        idempotency_key=request.headers.get("idempotency-key"),
        body=_storable((await request.body()).decode("utf-8", "replace")),
        at=world.clock.now(),
    )


def _storable(text: str) -> str:
    """The text without NUL, which Postgres cannot hold and no valid request contains."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _bound_body(request: Request) -> None:
    """Refuse a body of more than `MAX_BODY_BYTES`, or of a length that is not declared."""
    if "transfer-encoding" in request.headers:
        raise ServiceError(411, "length_required", "Send the body with a Content-Length header, not in chunks.")
    if int(request.headers.get("content-length", "0")) > MAX_BODY_BYTES:
        raise ServiceError(413, "body_too_large", f"Send at most {MAX_BODY_BYTES} bytes.")


def caller_of(request: Request) -> Caller:
    """Who sent this request."""
    caller = request.state.caller
    if not isinstance(caller, Caller):
        raise TypeError("caller_of serves routes of service_router only")
    return caller


FromCaller = Annotated[Caller, Depends(caller_of)]
