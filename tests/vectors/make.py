"""Writes the vectors of providers: `python -m tests.vectors.make NAME …`. Without a name, writes the missing ones.

A file holds deliveries that were signed once and never change. Every later version of Oncehook must verify them, with
the same event ids. Regenerate a file only if the definition of its provider was wrong.
"""

import json
import sys
from pathlib import Path
from typing import Any

from oncehook.model.delivery import Delivery
from oncehook.providers.definition import built_in_names
from tests.support.providers import NOW, OPTIONS, SENDERS, Sender

FOLDER = Path(__file__).parent


def main(names: list[str]) -> None:
    for name in names or [name for name in built_in_names() if not (FOLDER / f"{name}.json").exists()]:
        cases = [case for sender in SENDERS if sender.provider.name == name for case in cases_of(sender)]
        (FOLDER / f"{name}.json").write_text(json.dumps(cases, indent=1, ensure_ascii=False) + "\n", "utf-8")
        print(f"wrote {name}.json")


def cases_of(sender: Sender) -> list[dict[str, Any]]:
    cases = [case(sender, f"{sender} {type_}", sender.compose(type_)) for type_ in sender.types]
    cases.append(case(sender, f"{sender} under another secret", sender.compose(number=1), valid=False))
    return cases


def case(sender: Sender, name: str, delivery: Delivery, *, valid: bool = True) -> dict[str, Any]:
    source = sender.source()
    claims = source.read(delivery, source.parse(delivery))
    is_generated = sender.provider.event.id == "new:delivery"
    return {
        "name": name,
        "valid": valid,
        "now": NOW,
        "secrets": [sender.pair().verifying],
        "settings": {option: OPTIONS[option] for option in sender.provider.options},
        "headers": {key.decode(): value.decode("latin-1") for key, value in delivery.headers.items()},
        "body": delivery.body.decode(),
        "ids": None if is_generated else [claim.event_id for claim in claims],
        "types": [claim.type for claim in claims],
        "objects": [claim.object_id for claim in claims],
    }


if __name__ == "__main__":
    main(sys.argv[1:])
