"""The laboratory: what shows and measures the mirror. Nothing but the command line imports it."""
