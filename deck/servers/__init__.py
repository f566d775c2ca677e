"""Servers: llama-servers that Deck runs, and those that run elsewhere."""

from deck.servers.check import check_profile as check_profile
from deck.servers.check import replica_notes as replica_notes
from deck.servers.launcher import LocalLauncher as LocalLauncher
