"""The demonstration: two real clusters, topics filled by real producers, a live mirror, and a proof that all is equal.

It uses the mirror as anybody would: `mirror run CONFIG` in a process of its own, watched through the flow's journal and
through the clusters' log ends, stopped with SIGTERM. Whatever it starts ends with it, however it dies.
"""
