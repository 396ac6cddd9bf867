"""What was asked on the page, kept for whoever asked it."""
