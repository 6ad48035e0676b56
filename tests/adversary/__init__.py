"""The adversary: seeded schedules of all that clusters, people and other programs do, against a mirror on real brokers.

    python -m tests.adversary --schedules 200 --seed 1            # hunt
    python -m tests.adversary --seed 17 --shrink                  # one schedule, and what of it is enough
    python -m tests.adversary --seed 17 --only 0,3,4              # a part of its operations
    python -m tests.adversary --mends                             # take each mend out, and see it missed

`operations` makes a schedule from its seed, `driving` runs the mirror's own commands in forked processes (all of the
driver and its tasks, but no JVM), `world` holds two clusters and what is done to them, `logs` reads partitions batch by
batch, `journal` reads what the mirror says, `judging` holds one against the other, `play` plays a schedule, `shrinking`
drops what is not needed of one that failed, `mends` takes single mends out of a copy of the mirror.

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
