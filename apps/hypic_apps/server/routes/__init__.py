"""What is served, a file a path."""
