"""Alert rules, the incidents that they open, and one notification per incident and target."""

from oncehook.alerts.monitor import AlertMonitor
from oncehook.alerts.settings import AlertSettings, read_alerts

__all__ = ["AlertMonitor", "AlertSettings", "read_alerts"]
