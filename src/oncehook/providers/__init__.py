"""Webhook providers: definitions, signatures in both directions, expressions, handshakes."""
