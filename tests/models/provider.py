"""A provider of OpenAI's interface in this process: real HTTP, answers on demand, and a record of every request."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SLOW_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What the provider sends: a body, or less of it than it promised, or all of it slowly."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    cut_after: int | None = None
    drip: bool = False


@dataclass(frozen=True)
class Request:
    """What arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]


@dataclass
class Provider:
    """Answers that wait to be sent, in order, and requests that came."""

    url: str = ""
    answers: list[Answer] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)


def completion(
    *,
    content: str | None = None,
    calls: list[dict[str, Any]] | None = None,
    finish_reason: str = "stop",
    usage: dict[str, Any] | None = None,
    **message: Any,
) -> Answer:
    """A chat completion as OpenAI sends it."""
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "test-model-2026",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish_reason,
                "message": {"role": "assistant", "content": content, "tool_calls": calls, **message},
            }
        ],
    }
    if usage is not None:
        body["usage"] = usage
    return Answer(json.dumps(body).encode())


def call(name: Any, arguments: Any, call_id: Any = "call_a") -> dict[str, Any]:
    """One tool call as OpenAI sends it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@contextmanager
def running_provider() -> Iterator[Provider]:
    """The provider, as long as the block lasts."""
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            provider.requests.append(Request(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            if not provider.answers:
                self.send_error(500, "no answer was prepared")
                return
            self._send(provider.answers.pop(0))

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.content_type)
            self.send_header("Content-Length", str(len(answer.body)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if answer.drip:
                self._drip(answer.body)
                return
            self.wfile.write(answer.body[: answer.cut_after])
            self.wfile.flush()
            self.close_connection = answer.cut_after is not None

        def _drip(self, body: bytes) -> None:
            """One byte at a time, so that no single read waits long."""
            until = time.monotonic() + SLOW_S
            for position in range(len(body)):
                if provider.stopped.wait(0.05) or time.monotonic() > until:
                    break
                try:
                    self.wfile.write(body[position : position + 1])
                except OSError:
                    break
            self.close_connection = True

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    provider.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        provider.stopped.set()
        server.shutdown()
        server.server_close()
        thread.join(5)
