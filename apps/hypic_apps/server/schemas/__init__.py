"""What requests may hold and what answers hold."""
