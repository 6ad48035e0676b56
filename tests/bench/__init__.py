"""Measurements: each module is a command that prints its figures, and no test asserts a time.

What compares the mirror with other ways to copy is a command of its own, `mirror bench`.
"""
