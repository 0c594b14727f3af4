"""The report of runs, live in a browser."""
