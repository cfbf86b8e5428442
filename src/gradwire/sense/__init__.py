"""Sensing: times of steps, pulses and acknowledgements in, a View of the network out. Pure; time is passed in."""
