"""Alert rules, the incidents that they open, and one notification per incident and target."""

from oncehook.alerts.settings import AlertSettings, read_alerts
from oncehook.alerts.watch import Alerts

__all__ = ["AlertSettings", "Alerts", "read_alerts"]
