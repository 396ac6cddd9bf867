"""One file a figure: ``measure(bench)`` gives its rows."""
