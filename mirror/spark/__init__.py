"""The engine: the only place that knows Spark.

session      a SparkContext with our settings       relay       what a Spark task does
supervisor   epochs on the driver                   daemon      forks ready workers
flow         what to run, how it ended
plan         partitions to tasks                    stopmark    how the driver ends an epoch early
beginning    before the first epoch             epoch       one Spark job
tidings      what the journal tells             stoplog     one event for each stop
renewal      what is new on the clusters        lookout     looks again and again, reads SIGHUP
reports      of the driver itself               ending      what is missing
drain        a bounded copy without it          proof       comparison of both sides by tasks
"""
