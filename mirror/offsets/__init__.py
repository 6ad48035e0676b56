"""What a flow keeps on the target: its journal, a compacted topic of states."""
