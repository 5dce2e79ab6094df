"""The fast path of duplicates: answers a repeated delivery without a claim, if its receipt is certainly committed.

A process remembers the receipts of its claims after their commits, and shares them through Redis if that is configured.
Before a delivery is answered from memory, one small query confirms that the database is still the same and has deleted
no such receipt. All deliveries that wait share it.
"""
