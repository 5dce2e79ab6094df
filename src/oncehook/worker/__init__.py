"""Leases receipts, runs their handlers, settles them, and rescues those of dead workers."""
