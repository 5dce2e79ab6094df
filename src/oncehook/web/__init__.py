"""The service around the receiver: probes, metrics, the dashboard and the JSON API."""
