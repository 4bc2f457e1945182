"""The third world: hosts in network namespaces of this machine, with real sockets over links of a cluster file."""
