import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import platformdirs
import psutil
import psycopg
import pytest

from agentic_loop.graph.store.embedded import (
    EmbeddedDatabaseError,
    create_database,
    data_folder,
    drop_database,
)
from agentic_loop.graph.store.embedded import database_url as server_url
from tests.conftest import DatabaseMaker

WAIT_S = 30

CLIENT = textwrap.dedent("""
    import sys
    from pathlib import Path
    import psycopg
    from agentic_loop.graph.store.embedded import database_url

    for line in sys.stdin:
        url = database_url(Path(sys.argv[1]))
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS visits (visit int)")
            connection.execute("INSERT INTO visits VALUES (1)")
            print(connection.execute("SELECT count(*) FROM visits").fetchone()[0], url, flush=True)
""")


class Client:
    """A process that uses the embedded database of a folder."""

    started: ClassVar[list["Client"]] = []

    def __init__(self, folder: Path) -> None:
        self.started.append(self)
        environment = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def visit(self) -> int:
        """Insert a row and count the rows of all visits."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("visit\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, self._process.communicate(timeout=WAIT_S)[1]
        return int(answer.split()[0])

    def leave(self, number: signal.Signals | None = None) -> str:
        """End it, by a signal or by itself, and return what it complained."""
        if number is not None:
            self._process.send_signal(number)
        return self._process.communicate(timeout=WAIT_S)[1]

    def end(self) -> None:
        """Leave nothing behind, whatever state a failed test left it in."""
        if self._process.returncode is None:
            self.leave()

    @property
    def exit_code(self) -> int | None:
        return self._process.returncode


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    yield tmp_path / "data"
    while Client.started:
        Client.started.pop().end()


def server_pid(folder: Path) -> int | None:
    """The id of the folder's Postgres server, if one runs."""
    pid_file = folder / "postgres" / "postmaster.pid"
    if not pid_file.exists():
        return None
    pid = int(pid_file.read_text().partition("\n")[0])
    return pid if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE else None


def test_the_last_client_stops_the_server_and_the_data_stays(folder: Path) -> None:
    first, second = Client(folder), Client(folder)
    assert first.visit() == 1
    pid = server_pid(folder)
    assert pid is not None
    assert second.visit() == 2
    assert server_pid(folder) == pid
    assert "Traceback" not in first.leave()
    assert first.exit_code == 0
    assert server_pid(folder) == pid
    assert second.visit() == 3
    second.leave()
    assert server_pid(folder) is None
    third = Client(folder)
    assert third.visit() == 4
    third.leave()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_client_that_is_asked_to_end_stops_the_server(folder: Path, number: signal.Signals) -> None:
    client = Client(folder)
    client.visit()
    client.leave(number)
    assert client.exit_code == 128 + number
    assert server_pid(folder) is None


def test_a_killed_client_does_not_keep_the_server_for_ever(folder: Path) -> None:
    killed, last = Client(folder), Client(folder)
    killed.visit()
    last.visit()
    killed.leave(signal.SIGKILL)
    assert server_pid(folder) is not None
    last.leave()
    assert server_pid(folder) is None


def test_a_process_that_got_the_id_of_a_dead_client_is_no_client(folder: Path) -> None:
    client = Client(folder)
    client.visit()
    clients = folder / "postgres" / ".handle_pids.json"
    with subprocess.Popen(["sleep", str(WAIT_S)]) as other:
        clients.write_text(json.dumps([other.pid]))
        os.utime(clients, (0, 0))
        client.visit()
        client.leave()
        other.kill()
    assert server_pid(folder) is None


def test_a_server_that_crashed_is_started_again(folder: Path) -> None:
    first, second = Client(folder), Client(folder)
    first.visit()
    second.visit()
    crashed = server_pid(folder)
    assert crashed is not None
    os.kill(crashed, signal.SIGKILL)
    assert second.visit() == 3
    assert server_pid(folder) not in (None, crashed)
    second.leave()
    # The first client knew only the server that crashed, and must stop its successor all the same.
    first.leave()
    assert server_pid(folder) is None


def test_a_pid_file_that_names_another_program_does_not_count(folder: Path) -> None:
    client = Client(folder)
    client.visit()
    pid_file = folder / "postgres" / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    client.leave()
    with subprocess.Popen(["sleep", str(WAIT_S)]) as other:
        pid_file.write_text("\n".join([str(other.pid), *lines[1:]]) + "\n")
        successor = Client(folder)
        assert successor.visit() == 2
        successor.leave()
        other.kill()


def test_a_long_path_is_no_obstacle(folder: Path) -> None:
    deep = folder / ("long" * 30)
    client = Client(deep)
    assert client.visit() == 1
    client.leave()
    assert server_pid(deep) is None


@pytest.mark.parametrize("name", ["with space", "quote'd", "$HOME"])
def test_a_path_that_the_server_cannot_take_is_refused_with_advice(folder: Path, name: str) -> None:
    with pytest.raises(EmbeddedDatabaseError, match="AGENTIC_LOOP_DATA"):
        server_url(folder / name)
    assert not folder.exists()


def test_a_folder_that_cannot_be_made_is_refused_with_advice(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EmbeddedDatabaseError, match="DATABASE_URL"):
        server_url(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes Postgres run as another user")
def test_root_is_told_which_folders_become_readable(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    client = Client(folder)
    client.visit()
    assert str(folder) in client.leave()


def test_database_url_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/db")
    assert server_url(tmp_path) == "postgresql://elsewhere/db"
    assert list(tmp_path.iterdir()) == []


def test_the_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AGENTIC_LOOP_DATA", raising=False)
    assert data_folder().name == "agentic-loop"
    assert " " not in str(data_folder())
    monkeypatch.setattr(platformdirs, "user_data_path", lambda name: Path("/Users/x/Application Support") / name)
    assert data_folder() == Path.home() / ".local" / "share" / "agentic-loop"
    monkeypatch.setenv("AGENTIC_LOOP_DATA", str(tmp_path))
    assert data_folder() == tmp_path


@pytest.mark.parametrize("name", ["plain", "With-Ünusual name?&/%"])
def test_a_database_is_created_once_and_dropped(make_database: DatabaseMaker, name: str) -> None:
    server = make_database()
    name = f"{name} {os.getpid()}"
    url = create_database(server, name)
    try:
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT current_database()").fetchone() == (name,)
            connection.execute("CREATE TABLE kept (id int)")
        assert create_database(server, name) == url
        with psycopg.connect(url) as connection:
            connection.execute("SELECT * FROM kept")
        as_words = psycopg.conninfo.make_conninfo(server)
        with psycopg.connect(create_database(as_words, name)) as connection:
            assert connection.execute("SELECT current_database()").fetchone() == (name,)
    finally:
        drop_database(server, name)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        psycopg.connect(url)
    drop_database(server, name)  # the second time does nothing


def test_many_threads_create_one_database(make_database: DatabaseMaker) -> None:
    server = make_database()
    name = f"contested {os.getpid()}"
    try:
        with ThreadPoolExecutor(8) as threads:
            urls = set(threads.map(lambda _: create_database(server, name), range(8)))
        assert len(urls) == 1
    finally:
        drop_database(server, name)
