"""The spool: deliveries that cannot be claimed now are written to a local disk before their ack, and claimed later.

A segment is a file that one process appends to. Its lock tells whether that process lives: the segments of a dead
process are claimed by any other. A segment is removed after the events of all its deliveries are committed.
"""
