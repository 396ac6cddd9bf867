"""One file a recurrence: how its state moves over rows, and how a cached segment moves it at once."""
