"""What can be seen from outside: logs, live figures, and how figures are read back from a topic."""
