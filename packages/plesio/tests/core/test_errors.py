import pickle

from plesio.core.errors import WorkerLostError


def test_the_error_of_a_lost_worker_reaches_another_process():
    found = pickle.loads(pickle.dumps(WorkerLostError.of([1, 2])))
    assert found.ranks == (1, 2)
    assert str(found).startswith("worker 1, 2 was lost")
