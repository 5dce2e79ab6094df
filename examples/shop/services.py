"""Stand-ins for the services outside the shop's database: a mail service and a message broker.

They take part in no transaction. Like many real services, they honor idempotency keys.
"""

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

FOLDER = Path(os.environ.get("SHOP_SERVICES", "shop-services"))


class Service:
    """A service that stores one file per idempotency key in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def send(self, message: dict[str, Any], *, idempotency_key: str) -> None:
        """Accept a message, unless a message with this key was accepted before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.folder / f"{uuid4()}.draft"
        draft.write_text(json.dumps(message))
        try:
            os.link(draft, self.folder / f"{idempotency_key}.json")  # of concurrent calls, exactly one succeeds
        except FileExistsError:
            pass
        finally:
            draft.unlink()

    def accepted(self) -> list[dict[str, Any]]:
        """All accepted messages, oldest first."""
        files = sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        return [json.loads(file.read_text()) for file in files]


mail_service = Service(FOLDER / "mail")
broker = Service(FOLDER / "bus")
