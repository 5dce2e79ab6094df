"""Planted bugs: mistakes as patches, each of which the tests must catch. `python -m proof.planted` plants them."""
