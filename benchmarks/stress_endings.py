"""Is a run that is over, over for everybody? Workers are killed and stopped about its end, and in saves.

    python benchmarks/stress_endings.py [--faults 500] [--policies "bsp asp"] [--seed 0] [--budget "20 min"]
    python benchmarks/stress_endings.py --kinds "kill worker in a save" --policies "hier:bsp/local_sgd:4" --budget "2 h"
    python benchmarks/stress_endings.py --seed 0 --only 17

The runs and the laws are those of stress_processes.py. A worker, mostly rank 0, is stopped (SIGSTOP) and wakes when all
others have ended, or is killed or stopped for a moment when its loops are over: while it evaluates, waits for the
others and says goodbye. One that wakes up too late must end with an error that says so; nobody may hang for longer than
its lease and ten seconds; totals must be whole, or a line must say what they lack.

Prints a table and, of each run that went otherwise, the command that repeats it; writes
benchmarks/results/stress_endings.json. It ends with status 1 unless all went as it should.
"""

from process_faults import ENDINGS
from stress_processes import main

if __name__ == "__main__":
    main("stress_endings", tuple(ENDINGS), __doc__)
