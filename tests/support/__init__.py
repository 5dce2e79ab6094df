"""What tests share: events, servers, senders, processes, and waiting. README.md says which module has what."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
