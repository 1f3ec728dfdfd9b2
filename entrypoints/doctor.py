"""Says whether this machine can run tasks, and what to do about whatever is not in order.

Looks only: nothing is created, migrated or sent, except that an embedded database is started to be looked at.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version as installed_version

import httpx2
import psycopg
from pydantic import JsonValue

from agentic_loop.graph.errors import Misuse
from agentic_loop.graph.store.database import translated
from agentic_loop.graph.store.embedded import DATABASE_URL_VARIABLE, EmbeddedDatabaseError, data_folder
from agentic_loop.graph.store.migrate import migrations
from agentic_loop.models.settings import MODEL_VARIABLE
from agentic_loop.tools.http import ServiceUrls

from .app import Settings, database_of, model_of, services_of

OLDEST_PYTHON = (3, 11)
SERVICE_TIMEOUT_S = 3.0
_CONNECT_TIMEOUT_S = 10

_PACKAGES = ("agentic-loop", "langgraph", "langchain-core", "langchain-openai", "pydantic", "psycopg", "cedarpy")

_SCHEMA_VERSION = "SELECT coalesce(max(version), 0) FROM agentic_loop.schema_version"
_SCHEMA_IS_THERE = "SELECT to_regclass('agentic_loop.schema_version') IS NOT NULL"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at; ``advice`` says what to do where it is not in order."""

    name: str
    ok: bool
    detail: str
    advice: str = ""


def findings(environment: Mapping[str, str], database: str) -> Iterator[Finding]:
    """Every finding, as it is made: Python, versions, database, migrations, model, services.

    Never raises for what is not in order on this machine: that is a finding.
    """
    yield _python()
    yield Finding("versions", True, ", ".join(f"{name} {installed_version(name)}" for name in _PACKAGES))
    yield from _database(environment, database)
    yield _model(environment)
    yield from _services(environment)


def finding_json(finding: Finding) -> JsonValue:
    """A finding as JSON data."""
    return {"name": finding.name, "ok": finding.ok, "detail": finding.detail, "advice": finding.advice}


def _python() -> Finding:
    wanted = ".".join(map(str, OLDEST_PYTHON))
    advice = f"install Python {wanted} or newer, and agentic-loop in it"
    return Finding(
        "python", sys.version_info >= OLDEST_PYTHON, f"{sys.version.split()[0]} at {sys.executable}", advice
    )


def _database(environment: Mapping[str, str], database: str) -> Iterator[Finding]:
    given = bool(environment.get(DATABASE_URL_VARIABLE))
    kind = f"the server that {DATABASE_URL_VARIABLE} names" if given else f"embedded, in {data_folder()}"
    advice = (
        f"start that server or correct {DATABASE_URL_VARIABLE}; without it, an embedded one is used"
        if given
        else f"set AGENTIC_LOOP_DATA to a folder that you may write to, or {DATABASE_URL_VARIABLE} to a server"
    )
    try:
        with psycopg.connect(database_of(environment, database), connect_timeout=_CONNECT_TIMEOUT_S) as connection:
            name, server = connection.info.dbname, connection.info.server_version // 10_000
            there = connection.execute(_SCHEMA_IS_THERE).fetchone()
            present = connection.execute(_SCHEMA_VERSION).fetchone() if there == (True,) else None
    except psycopg.Error as error:
        yield Finding("database", False, f"{kind}: {translated(error)}", advice)
        yield Finding("migrations", False, "not looked at, because the database cannot be reached", advice)
    except EmbeddedDatabaseError as error:
        yield Finding("database", False, f"{kind}: {error}", advice)
        yield Finding("migrations", False, "not looked at, because the database cannot be reached", advice)
    else:
        yield Finding("database", True, f"Postgres {server}, database {name}: {kind}")
        yield _migrations(0 if present is None else int(present[0]))


def _migrations(present: int) -> Finding:
    newest = len(migrations())
    if present == newest:
        return Finding("migrations", True, f"schema version {present}, the newest")
    if present < newest:
        return Finding("migrations", True, f"schema version {present} of {newest}; the next start migrates it")
    return Finding(
        "migrations",
        False,
        f"schema version {present}, but this agentic-loop knows only {newest}",
        f"install the newer agentic-loop, or point {DATABASE_URL_VARIABLE} at another database",
    )


def _model(environment: Mapping[str, str]) -> Finding:
    try:
        # Neither the database nor the services matter here.
        settings = Settings("", ServiceUrls.all_at(""), environment.get(MODEL_VARIABLE), environment)
        name = model_of(settings).name
    except Misuse as error:
        return Finding("model", False, str(error), f"set {MODEL_VARIABLE} as the message says")
    if name == "rehearsal":
        return Finding("model", True, f"rehearsal, the bundled one; {MODEL_VARIABLE}=openai:NAME chooses another")
    return Finding("model", True, f"{name}, from {MODEL_VARIABLE}; it has not been called")


def _services(environment: Mapping[str, str]) -> Iterator[Finding]:
    try:
        urls = services_of(environment)
    except Misuse as error:
        yield Finding("services", False, str(error), "set the variables that the message names")
        return
    addresses: dict[str, list[str]] = {}
    for name in ("payments", "refunds", "policy", "notifications"):
        addresses.setdefault(str(getattr(urls, name)), []).append(name)
    for url, names in addresses.items():
        yield _service(url, names)


def _service(url: str, names: list[str]) -> Finding:
    title = f"services {', '.join(names)}" if len(names) > 1 else f"service {names[0]}"
    advice = "start it: agentic-loop sandbox runs all of them; or set AGENTIC_LOOP_SANDBOX_URL to where they are"
    try:
        # Any answer will do: what is asked here is only whether somebody is there.
        answer = httpx2.get(url, timeout=SERVICE_TIMEOUT_S, trust_env=False)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Finding(title, False, f"{url} does not answer: {str(error) or type(error).__name__}", advice)
    if answer.status_code >= 500:
        return Finding(title, False, f"{url} answers with {answer.status_code}", advice)
    return Finding(title, True, f"{url} answers")
