"""Qualifies the server: what it does under load, when it is killed, and what its tenants can tell of each other."""
