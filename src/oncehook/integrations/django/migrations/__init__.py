"""The migrations of Django, made from the same SQL files as those of `oncehook migrate`."""
