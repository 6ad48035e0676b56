"""Decisions as pure functions: which topics, under which rules, in which lanes. Values in, values out."""
