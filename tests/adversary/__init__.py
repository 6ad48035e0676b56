"""The adversary: seeded schedules of all that clusters, people and other programs do, against a mirror on real brokers.

    python -m tests.adversary --schedules 200 --seed 1                      # hunt
    python -m tests.adversary --schedules 9 --repertoire rekeyed            # the same with re-keyed topics, on Spark
    python -m tests.adversary --seed 17 --shrink                            # one schedule, and what of it is enough
    python -m tests.adversary --seed 17 --plays "produce(a, amount=9); run"
    python -m tests.adversary --mends                                       # take each mend out, and see it missed

operations  what may happen, and a schedule from its seed   driving  the mirror's own commands, without a JVM
play        plays a schedule                                world    two clusters, and what is done to them
on_clusters what clusters, people and programs do           logs     reads partitions batch by batch
on_mirror   runs the mirror and its commands                journal  reads what the mirror says
judge       holds what it did and said against both sides   judging  compares logs (pure)
memory      what is known of both sides                     mends    decisions of the mirror that are taken out
hunting     many schedules, and what is enough of one       rekeyed  the same for re-keyed topics

What must hold after each step, by name:

    I1  no record that was on the target is gone by an act of the mirror, and what the flow does not own keeps its
        settings and partitions
    I2  exit 0 of `run --once`, and CAUGHT_UP, mean that both logs are equal, but for recorded losses
    I3  after a failover that says 0 nothing more arrives, and groups stand where the source's do
    I4  a stop names a cause that there is
    I5  a group never moves to where the target has no record for it, or past what its reader has read
    I6  a stop stays, over restarts, until a person acts
    I7  each step ends in bounded time, with a named state, and a live mirror does not end by itself with 0
    I8  `verify` says 0 of what is equal and whole alone, and `offsets translate` says where the same record is
    I9  no command ends with a bug
"""
