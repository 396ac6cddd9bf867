"""Who starts and runs the sequences of a pass: torch, or a device's pools and kernels. The verbs: ``base.Backend``."""
