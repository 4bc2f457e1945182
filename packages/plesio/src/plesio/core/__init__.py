"""Ground floor: errors, units, clocks, traces and the result schema. Imports nothing of Plesio's."""
