"""The adversary of re-keyed topics: seeded sessions of one `mirror run`, with Spark, that re-keys several topics.

    python -m tests.adversary.rekeyed --schedules 20 --seed 1      # hunt
    python -m tests.adversary.rekeyed --seed 17 --only 0,3         # two topics of one session
    python -m tests.adversary.rekeyed --seed 17 --turns 2          # its first turns alone

Spark takes seconds to start and to carry out a micro-batch, so a seed is a session: each topic has a script of its own,
and one mirror serves all of them. A session has turns: something happens to the mirror (it is frozen, killed, failed
over), and to each topic before that and meanwhile; then the mirror comes to rest, and both sides are judged. A crash
cuts the logs of one topic alone; to the others it is a restart of the broker, which changes nothing for them.

`scripts` makes sessions, `records` judges two logs (both pure), `play` plays a session. Clusters, readers, crashes,
commands and the numbers of what must hold are those of the package above; `support/rekeychecker.py` compares.

The limits that pages name are excused, each by its name (`play.Limit`).
"""
