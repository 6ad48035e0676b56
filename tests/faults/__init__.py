"""Faults of processes and networks, one at a time, against real brokers.

workload    what is written to the source              points      named places where a mirror dies or freezes
network     a proxy that knows requests                mirroring   the mirror as a process of its own, without Spark
singles     a mirror for each fault, and the judgment of what its successors made of it
"""
