"""Clients of message brokers and of AWS. Each needs an optional extra, imported only when a setting needs it."""
