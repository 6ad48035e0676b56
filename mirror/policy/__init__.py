"""Decisions as pure functions: which topics, under which rules, in which tasks. Values in, values out."""
