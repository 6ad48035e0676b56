"""Failover: what a flow can still get over, what is lost, and where groups go on."""
