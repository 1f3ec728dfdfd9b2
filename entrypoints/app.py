"""Puts a runtime together from settings: which database, which model, which services, which people.

Every setting is an environment variable, so the command line, a server and an embedding app read the same ones.

Source: DESIGN §1, §7 (one database).
"""

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agentic_loop.graph.definition import LoopDefinition
from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.loops.refund import refund_loop
from agentic_loop.graph.ports import Clock, Ids, Model
from agentic_loop.graph.run import Runtime, Watcher, open_runtime
from agentic_loop.graph.state import Principal
from agentic_loop.graph.store.embedded import create_database, database_url
from agentic_loop.models.chat_model import LangChainModel
from agentic_loop.models.pricing import pricing_for
from agentic_loop.models.settings import model_from_settings
from agentic_loop.tools.http import LazyHttpClient, ServiceUrls

DEFAULT_SANDBOX_PORT = 8472
"""Where ``agentic-loop sandbox`` listens unless told otherwise, and where the loops look for it."""

DATABASE = "agentic_loop"
"""The database of an embedded Postgres; with DATABASE_URL, the database is the one that it names."""

DEMO_DATABASE = "agentic_loop_demo"
"""The database of the demo, made anew at every demo so that it starts from the same world."""

ALL_SCOPES = ["orders:read", "refunds:read", "refunds:write", "policy:read", "notifications:write"]
"""What a support agent's task may do; the policy still decides about each call."""

PEOPLE: Mapping[str, Principal] = {
    person.id: person
    for person in (
        Principal(id="ravi", tenant="acme", roles=["support_agent"], scopes=ALL_SCOPES),
        Principal(id="asha", tenant="acme", roles=["support_lead"], scopes=ALL_SCOPES),
        Principal(id="meera", tenant="acme", roles=["manager"], scopes=ALL_SCOPES),
        Principal(id="nina", tenant="acme", roles=["support_agent"], scopes=["orders:read", "refunds:read"]),
        Principal(id="gita", tenant="globex", roles=["support_lead"], scopes=ALL_SCOPES),
    )
}
"""The people of the sandbox: an agent, a lead, a manager, an agent who may only read, a lead of another tenant."""


def people_from(environment: Mapping[str, str]) -> Mapping[str, Principal]:
    """Who ``--as`` may name: the sandbox's people, or those of the JSON file that AGENTIC_LOOP_PEOPLE names.

    The file holds a list of objects with id, tenant, roles and scopes.

    Raises:
        Misuse: the file cannot be read or does not hold such a list.
    """
    path = environment.get("AGENTIC_LOOP_PEOPLE", "")
    if not path:
        return PEOPLE
    try:
        people = TypeAdapter(list[Principal]).validate_python(json.loads(Path(path).read_text("utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise Misuse(f"AGENTIC_LOOP_PEOPLE: {path} must hold a JSON list of people: {error}") from error
    return {person.id: person for person in people}


def person(name: str, environment: Mapping[str, str] = os.environ) -> Principal:
    """The person of this name.

    Raises:
        Misuse: nobody is known by it; the message lists who is.
    """
    people = people_from(environment)
    if name not in people:
        known = ", ".join(f"{one.id} ({', '.join(one.roles)} of {one.tenant})" for one in people.values())
        raise Misuse(f"nobody is known as {name!r}; known are: {known}")
    return people[name]


@dataclass(frozen=True)
class Settings:
    """Where things are. ``services`` are base URLs; ``model`` is a model's name as AGENTIC_LOOP_MODEL takes it."""

    database_url: str
    services: ServiceUrls
    model: str | None
    environment: Mapping[str, str]

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] = os.environ, *, model: str | None = None, database: str = DATABASE
    ) -> "Settings":
        """The settings that the environment gives; what it does not give has a default that works on one machine.

        Raises:
            Misuse: a setting is wrong.
        """
        return cls(
            database_url=database_of(environment, database),
            services=services_of(environment),
            model=model or environment.get("AGENTIC_LOOP_MODEL"),
            environment=environment,
        )


def database_of(environment: Mapping[str, str], database: str) -> str:
    """The URL of the database: DATABASE_URL as it is, else a database of the embedded Postgres."""
    if environment.get("DATABASE_URL") and database == DATABASE:
        return environment["DATABASE_URL"]
    return create_database(database_url(), database)


def services_of(environment: Mapping[str, str]) -> ServiceUrls:
    """Where the services are; without a setting, a sandbox on this machine at its usual port."""
    services = ("SANDBOX", "PAYMENTS", "REFUNDS", "POLICY", "NOTIFICATIONS")
    if any(environment.get(f"AGENTIC_LOOP_{service}_URL") for service in services):
        return ServiceUrls.from_environment(environment)
    return ServiceUrls.all_at(f"http://127.0.0.1:{DEFAULT_SANDBOX_PORT}")


def model_of(settings: Settings) -> Model:
    """The model that the settings name, behind the model port.

    Raises:
        Misuse: no such model, or its key is missing.
    """
    chat, name = model_from_settings(settings.model, settings.environment)
    return LangChainModel(chat, name, pricing_for(name, settings.environment))


@asynccontextmanager
async def open_app(settings: Settings, *, watch: Watcher | None = None) -> AsyncIterator[Runtime]:
    """A runtime with every loop that ships, on these settings.

    Raises:
        Outage: the database cannot be reached.
        Misuse: a setting is wrong; the message says which.
    """
    async with LazyHttpClient() as client:

        def define(clock: Clock, ids: Ids) -> Mapping[str, LoopDefinition]:
            return {"refund": refund_loop(settings.services, ids=ids, clock=clock, client=client)}

        async with open_runtime(
            define, database_url=settings.database_url, model=model_of(settings), watch=watch
        ) as runtime:
            yield runtime
