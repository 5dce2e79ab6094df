"""Operations for operators: replay, rehearse, prune, forget, pause, diagnose, and export metrics.

The command line, the dashboard and the JSON API call them.
"""
