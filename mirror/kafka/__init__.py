"""The Kafka protocol: what goes over a socket and how an answer is read. Nothing here knows about mirroring.

`protocol` is bytes and values alone; `connection` is one socket, `cluster` all of a cluster's; `fetch`, `produce`,
`queries` and `groups` are the requests that the mirror sends, each in terms of its own values; and `admin` is the only
module of the product that imports confluent-kafka.
"""
