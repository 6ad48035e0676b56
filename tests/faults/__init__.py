"""Faults, on purpose: seeded schedules of them against real brokers, judged by the checker.

    python -m tests.faults.run --seed 7             # one schedule, logged step by step
    python -m tests.faults.run --seed 0 --count 200 # two hundred

workload    what is written to the source              points      named places where a mirror dies or freezes
schedule    from a seed: a workload and faults (pure)  mirroring   the mirror as a process of its own, without Spark
network     a proxy that knows requests                play        runs a schedule and judges its end
moving      what was mirrored and lost, where offsets are translated
"""
