"""Payload objects: large bodies that are stored in a directory or in S3 instead of the database."""
