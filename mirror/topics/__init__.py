"""Talking to a cluster's administration: topics, configs, preflight. The only part that imports confluent-kafka."""
