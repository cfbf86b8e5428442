"""What users call: attach to DDP and FSDP2 models, and process groups whose ranks may rejoin."""
