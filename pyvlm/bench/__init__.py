"""The load generator behind `pyvlm bench serve`."""
