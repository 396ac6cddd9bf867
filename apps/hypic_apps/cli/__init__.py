"""The command line ``hypic-rag``: one module a command."""
