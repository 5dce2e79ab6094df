"""Stands for what is outside the shop's database: a mail service, and a message broker.

No transaction reaches them. What they have is what such services have: they honour idempotency keys.
"""

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

FOLDER = Path(os.environ.get("SHOP_OUTSIDE", "shop-outside"))


class Service:
    """A folder with one file for each idempotency key that it was called with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def send(self, message: dict[str, Any], *, idempotency_key: str) -> None:
        """Take a message, unless one with this key was taken before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{uuid4()}.draft"
        draft.write_text(json.dumps(message))
        try:
            os.link(draft, self.folder / f"{idempotency_key}.json")  # one of those who try it at once succeeds
        except FileExistsError:
            pass
        finally:
            draft.unlink()

    def taken(self) -> list[dict[str, Any]]:
        """Every message that was taken, oldest first."""
        files = sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        return [json.loads(file.read_text()) for file in files]


mail_service = Service(FOLDER / "mail")
broker = Service(FOLDER / "bus")
