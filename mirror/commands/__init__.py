"""What each command shows: progress, tables, JSON. The work itself is done elsewhere."""
