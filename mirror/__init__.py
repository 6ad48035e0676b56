"""mirror: copies topics from one Apache Kafka cluster to another without decompressing them."""

__version__ = "0.1.0"
