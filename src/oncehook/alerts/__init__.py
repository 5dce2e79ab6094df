"""Alerts: what is wrong is found by rules, is an incident until it is over, and is told once."""

from oncehook.alerts.settings import AlertSettings, read_alerts
from oncehook.alerts.watch import Alerts

__all__ = ["AlertSettings", "Alerts", "read_alerts"]
