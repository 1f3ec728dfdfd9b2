"""The digest under which payloads are stored: SHA-256 over canonical JSON.

Source: DESIGN §8 (fingerprints), RFC 8785.
"""

import hashlib

import rfc8785
from pydantic import JsonValue


def canonical_digest(value: JsonValue) -> str:
    """The SHA-256 of the value's canonical JSON, in hex."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()
