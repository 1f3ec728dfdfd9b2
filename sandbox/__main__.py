"""Run the sandbox: `python -m agentic_loop.sandbox --port 0 --database-url URL`."""

from agentic_loop.sandbox.server import main

main()
