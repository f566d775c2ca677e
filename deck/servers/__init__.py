"""Servers: llama-servers that Deck runs, and those that run elsewhere."""

from deck.servers.check import check_profile as check_profile
from deck.servers.launcher import LocalLauncher as LocalLauncher
