"""Where entries live: this process's memory (host) and a folder (disk)."""
