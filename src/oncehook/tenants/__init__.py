"""Tenants: many accounts behind one source, each with its own address, its own secrets and its own events."""
