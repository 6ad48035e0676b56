"""Logs as brokers store them, in files: segments, replicas, and what a restore makes of them."""
