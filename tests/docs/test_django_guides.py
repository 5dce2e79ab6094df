"""The guides for other Django packages are parts of a project: this test runs the code of each in one."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.documentation import PAGES

MODELS = """
from django.db import models

class Bounce(models.Model):
    address = models.EmailField(unique=True)
    reason = models.TextField()
"""
TESTS = """
from django.test import TestCase
from oncehook import State
from oncehook.integrations.django.testing import WebhookMixin
import newsletter.receivers
from newsletter.models import Bounce

BOUNCE = {"event": "bounce", "email": "jane@example.com", "sg_event_id": "sg_1", "sg_message_id": "abc.filter1",
          "timestamp": 1763200000, "reason": "550 no such user"}

class Tracking(WebhookMixin, TestCase):
    def test_receiver_of_anymail_runs_once(self):
        for _ in range(2):
            self.webhooks.deliver("sendgrid", [BOUNCE])
        self.assertEqual([receipt.status for receipt in self.webhooks.drain()], [State.PROCESSED])
        self.assertEqual(Bounce.objects.get().reason, "550 no such user")
"""


def test_guide_from_anymail_leads_to_receivers_that_run_once(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEHOOK_")}

    def run(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run("-m", "django", "startproject", "mysite", ".")
    (tmp_path / "newsletter").mkdir()
    (tmp_path / "newsletter/__init__.py").touch()
    (tmp_path / "newsletter/models.py").write_text(MODELS)
    (tmp_path / "newsletter/tests.py").write_text(TESTS)
    blocks = re.findall(r"^```python\n# ([\w/.]+)\n(.*?)^```$", PAGES["docs/from-anymail.md"], re.DOTALL | re.MULTILINE)
    assert [name for name, _ in blocks] == ["mysite/settings.py", "newsletter/webhooks.py", "newsletter/receivers.py"]
    for name, text in blocks:
        with (tmp_path / name).open("a") as file:
            file.write(text)
    assert "Ran 1 test" in run("manage.py", "test")
