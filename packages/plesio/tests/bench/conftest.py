from support.fork_server import fork_server as fork_server
