"""Receives deliveries over HTTP: checks, verifies, reads, claims and acknowledges them."""
