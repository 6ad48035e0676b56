"""The adversary of re-keyed topics: seeded sessions of one `mirror run`, with Spark, that re-keys several topics.

Spark takes seconds to start and to carry out a micro-batch, so a seed is a session: each topic has a script of its own,
and one mirror serves all of them. A session has turns: something happens to the mirror (it is frozen, killed, failed
over), and to each topic before that and meanwhile; then the mirror comes to rest, and both sides are judged. A crash
cuts the logs of one topic alone; to the others it is a restart of the broker, which changes nothing for them.

`scripts` makes sessions, `records` judges two logs (both pure), `play` plays a session.
"""
