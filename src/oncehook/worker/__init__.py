"""Leases receipts, runs their handlers, settles them, and rescues the receipts of dead workers."""
