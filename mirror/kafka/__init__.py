"""The Kafka protocol: what goes over a socket and how an answer is read. Nothing here knows about mirroring.

frames      bytes to frames, bounded (sans-io)           protocol    requests and answers to bytes, versions (sans-io)
guard       counts that lie, found before kio reads them  connection  one socket: handshake, pipelining, deadlines
security    the seam for TLS and SASL                     cluster     metadata, leaders, connections by purpose, retries
fetch, produce, queries: the requests that the mirror sends, each in terms of its own values
"""
