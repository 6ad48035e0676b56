"""Hostile bytes for everything that reads what a broker sent.

run       the command: each target for its share of the time, and what was found
engines   what makes inputs: atheris, or plain damage
forked    a process of its own for each target
limits    what one input may cost
targets   the table of targets, and their seeds

Targets take bytes and return nothing. What they call may raise the errors that are meant for damage, which the target
takes; any other error is a finding.

layout    the batch format: headers, record sets, segments, transactions
payloads  codecs and records
relay     a record set through classifier and writer, and payloads below right lengths and CRCs
wire      frames, answers, the journal
disks     a partition's folder: segments, and the small files beside them

What is found goes to findings/, which git ignores. An input worth keeping goes to regressions/TARGET/, under a name
that says what is wrong with it; every run begins with those, and the tests replay them.
"""
