"""Adapters of task queues: Celery, Dramatiq, RQ, arq, Taskiq and Temporal. Each imports a library that the user has."""
