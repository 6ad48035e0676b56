"""Measurements: each module is a command that prints its figures, and no test asserts a time.

python -m tests.bench.copy       start-up, CPU per GB, speed and memory of `mirror run --once`, beside a replay from
memory python -m tests.bench.latency    added latency at a fixed rate, epoch changes included, beside a direct consumer
"""
