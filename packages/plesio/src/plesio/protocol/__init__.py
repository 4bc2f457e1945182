"""Every message between workers and servers, and every effect of the coordinator, once, as frozen records.

    to_server   workers, other servers and observers to server 0
    to_worker   server 0 to workers
    effects     what the coordinator decides: orders among servers, and what workers are told
    bulk        what goes beside the tensors of pushes and pulls
    plans       samples: what is dealt out, and what is left of it
    figures     what workers report, and how far a run is
    message     what messages have in common; `encode` and `decode`
    peers       names of connections

Imports neither torch nor sockets.
"""
