"""What operators do: replay, rehearse, prune, diagnose, scrape. Used by the CLI, the pages and the API."""
