"""Outgoing HTTP: one client, limits on responses, public addresses only, a circuit breaker."""
