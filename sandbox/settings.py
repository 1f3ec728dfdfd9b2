"""What each service promises about keys and lists, and how an admin turns it into a worse service."""

from enum import StrEnum

from psycopg import AsyncConnection
from psycopg.rows import DictRow, class_row
from pydantic import BaseModel, ConfigDict, Field

from agentic_loop.sandbox.errors import ServiceError


class Service(StrEnum):
    """The services of the sandbox, by the names that their evidence carries."""

    PAYMENTS = "payments-service"
    REFUNDS = "refunds-service"
    POLICY_STORE = "policy-store"
    NOTIFICATIONS = "notifications-service"


def parse_service(name: str) -> Service:
    """A service from its full name or its short one (`refunds`, `policy_store`).

    Raises:
        ServiceError: 400 unknown_service.
    """
    wanted = name.strip().lower().replace("_", "-")
    for service in Service:
        if wanted in (service.value, service.value.removesuffix("-service")):
            return service
    raise ServiceError(
        400, "unknown_service", f"There is no service {name!r}; use one of {', '.join(map(str, Service))}."
    )


class ServiceSettings(BaseModel):
    """One service's behaviour. Seconds are by the sandbox's clock."""

    model_config = ConfigDict(frozen=True)

    service: Service
    idempotency_key_retention_s: int = Field(ge=0)
    replication_lag_s: int = Field(ge=0)
    honour_keys: bool
    lookup_by_key: bool


def _usual(service: Service, retention_s: int, lag_s: int, keys: bool) -> ServiceSettings:
    return ServiceSettings(
        service=service,
        idempotency_key_retention_s=retention_s,
        replication_lag_s=lag_s,
        honour_keys=keys,
        lookup_by_key=keys,
    )


USUAL_SETTINGS = (
    _usual(Service.PAYMENTS, 0, 0, keys=False),  # takes no writes
    _usual(Service.REFUNDS, 86_400, 2, keys=True),
    _usual(Service.POLICY_STORE, 0, 0, keys=False),  # takes no writes
    _usual(Service.NOTIFICATIONS, 86_400, 0, keys=True),
)

_SELECT_SETTINGS = """
SELECT service, idempotency_key_retention_s, replication_lag_s, honour_keys, lookup_by_key
FROM sandbox_admin.settings WHERE service = %s
"""

_REPLACE_SETTINGS = """
INSERT INTO sandbox_admin.settings
    (service, idempotency_key_retention_s, replication_lag_s, honour_keys, lookup_by_key)
VALUES (%(service)s, %(idempotency_key_retention_s)s, %(replication_lag_s)s, %(honour_keys)s,
%(lookup_by_key)s) ON CONFLICT (service) DO UPDATE SET
    idempotency_key_retention_s = excluded.idempotency_key_retention_s,
    replication_lag_s = excluded.replication_lag_s,
    honour_keys = excluded.honour_keys,
    lookup_by_key = excluded.lookup_by_key
"""


async def load_settings(connection: AsyncConnection[DictRow], service: Service) -> ServiceSettings:
    """The settings of a service now."""
    async with connection.cursor(row_factory=class_row(ServiceSettings)) as cursor:
        await cursor.execute(_SELECT_SETTINGS, [service])
        found = await cursor.fetchone()
    if found is None:
        raise RuntimeError(f"no settings row for {service}: the world was not seeded")
    return found


async def keep_settings(connection: AsyncConnection[DictRow], settings: ServiceSettings) -> None:
    """Replace the settings of a service."""
    await connection.execute(_REPLACE_SETTINGS, settings.model_dump())
