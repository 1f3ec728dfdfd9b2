"""Agentic Loop."""
