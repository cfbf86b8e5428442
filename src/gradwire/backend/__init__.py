"""Backend: the process group behind `init_process_group("gradwire")`, its collectives over wires and shared memory."""
