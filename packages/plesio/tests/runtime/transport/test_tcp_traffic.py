import socket

from plesio.runtime.transport.tcp_traffic import TcpTraffic


def test_a_connection_that_takes_the_number_of_one_that_was_closed_is_ended_with_the_rest():
    """A new group's connections can take the numbers of the last group's, which are closed meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = socket.create_connection(server.getsockname())
        number = before.fileno()
        traffic = TcpTraffic()
        with traffic.recording():
            before.close()
            connection = socket.create_connection(server.getsockname())
        assert connection.fileno() == number, "the least free number is taken"
        connection.settimeout(5.0)
        traffic.shut()
        assert connection.recv(1) == b"", "who waits for it hears of its end"
        connection.close()
