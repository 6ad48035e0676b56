"""What a flow keeps on the target beside the records: its journal, and the offsets of consumer groups.

journal         the compacted topic of states         groupsync       one look at all groups, and what follows from it
groupside       the groups of one cluster, in bulk    groupfollower   look after look, told in log and journal
runlog          where offsets moved to                ledgers         the same, as a task begins and writes it
owner           which process runs the flow           losses          what the source lost, and what of it was accepted
failover        that the flow was failed over
"""
