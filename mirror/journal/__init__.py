"""What a flow keeps on the target beside the records: its journal and heartbeats, and who owns the flow."""
