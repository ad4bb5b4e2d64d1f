"""Mutants that no test can notice, each with its reason: by module, then by `Mutation.key`.

The key names the line as it stands: one that changes drops out of here by itself, and its mutants count again.
"""

from __future__ import annotations

REASONS: dict[str, dict[str, str]] = {}
