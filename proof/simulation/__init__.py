"""Runs the real receiver, worker, relay, rescue, replay and prune on a simulated clock, scheduler and database faults.

Everything runs in one thread, and one seed decides everything: which process runs next, how long each statement takes,
which one fails, and which process dies at it. So a seed gives the same run each time.
"""
