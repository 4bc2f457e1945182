"""The parameters of the adaptive policy's components."""
