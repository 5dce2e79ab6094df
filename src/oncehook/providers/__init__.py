"""Who sends webhooks: definitions, signatures in both directions, expressions, handshakes."""
