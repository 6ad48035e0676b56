"""Real Kafka brokers on 127.0.0.1, from the published jars: what the tests, the demo and the measurements run against.

`Cluster.start` and `start_many` give clusters that end with their owner; `up`, `down` and `standing` manage ones that
stay.
"""

from __future__ import annotations

from mirror.lab.embedded.by_hand import StandingCluster, down, standing, up
from mirror.lab.embedded.cluster import Cluster, Spec, start_many
from mirror.lab.embedded.node import Node

__all__ = ["Cluster", "Node", "Spec", "StandingCluster", "down", "standing", "start_many", "up"]
