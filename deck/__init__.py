"""Deck: a compatibility router in front of llama-server."""

__version__ = "0.1.0"
