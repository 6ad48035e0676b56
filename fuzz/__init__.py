"""Hostile bytes for everything that reads what a broker sent.

run       the command: each target for its share of the time, and what was found
child     one target in a process of its own, with atheris or with plain damage
limits    what one input may cost
targets   the table of targets, and their seeds

Targets take bytes and return nothing. What they call may raise the errors that are meant for damage, which the target
takes; any other error is a finding.

layout    the batch format: headers, record sets, segments, transactions
payloads  codecs and records
relay     a record set through classifier and writer, and payloads below right lengths and CRCs
wire      frames, answers, the journal
"""
