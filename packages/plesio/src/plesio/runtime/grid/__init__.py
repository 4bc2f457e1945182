"""The S x K grid at work: decoupled back-propagation over stages, and mixing over groups (`docs/grid.md`).

==================  ====================================================================================================
file                concept
==================  ====================================================================================================
join_grid           `plesio.grid`: puts a worker together
grid                the session that a training loop sees
cutting             where the network is cut
stage               a stage's passes, its optimizer, and what it keeps between them
column, messages    its neighbours in the group, and what they send each other
mixer               its neighbours in other groups
records             the whole network, and the run's result
stage_pacing        stages of any speed
==================  ====================================================================================================
"""
