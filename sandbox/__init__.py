"""The world that agents act on: payments, refunds, a policy store and notifications as real HTTP services.

They keep their own tables, honour idempotency keys, and fail on demand. Start it with
`agentic_loop.sandbox.server.start_sandbox_process`.
"""
