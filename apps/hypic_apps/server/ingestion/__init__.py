"""Uploaded files: taken in, read in a sandbox, prefilled in the background."""
