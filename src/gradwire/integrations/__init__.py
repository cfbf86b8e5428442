"""What users call: DDP, FSDP2 and restarted processes, each attached to a session."""
