"""Where entries live: a GPU's pools (device), this process's memory (host) and a folder (disk)."""
