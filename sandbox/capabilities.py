"""What a service declares about itself, for a client that has to decide what an absent key proves."""

from fastapi import APIRouter
from pydantic import BaseModel

from agentic_loop.sandbox.settings import Service, load_settings, parse_service
from agentic_loop.sandbox.world import InWorld

router = APIRouter(tags=["capabilities"])


class Capabilities(BaseModel):
    """The promises of one service; seconds."""

    service: Service
    honours_keys: bool
    lookup_by_key: bool
    idempotency_key_retention_s: int
    replication_lag_s: int


@router.get("/capabilities")
async def get_capabilities(service: str, world: InWorld) -> Capabilities:
    """The promises of a service, for every tenant alike. Not logged: it shows nothing of anybody."""
    wanted = parse_service(service)
    async with world.pool.connection() as connection:
        settings = await load_settings(connection, wanted)
    return Capabilities(
        service=wanted,
        honours_keys=settings.honour_keys,
        lookup_by_key=settings.lookup_by_key,
        idempotency_key_retention_s=settings.idempotency_key_retention_s,
        replication_lag_s=settings.replication_lag_s,
    )
