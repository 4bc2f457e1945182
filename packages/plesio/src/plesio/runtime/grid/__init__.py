"""The S x K grid at work: decoupled back-propagation over stages, and mixing over groups (`docs/grid.md`).

==================  ====================================================================================================
file                concept
==================  ====================================================================================================
join_grid           `plesio.grid`: puts a worker together
grid                the session that a training loop sees
cutting             where the network is cut
tick, stage         what a worker does by its schedule; a stage's passes, and what it keeps between them
weight_prediction   where late stages go forward under Adam and its kin
column, messages    its neighbours in the group, and what they send each other
mixer               its neighbours in other groups
feed, deal          its micro-batches, and which samples all groups are dealt
formation           which groups there are, and when that changes
regrouping, joining what a worker does then, and how a group gets in
collector, network  one worker puts the stages together; the whole network
records             figures, snapshots, evaluations, and the run's result
saving              checkpoints
==================  ====================================================================================================
"""
