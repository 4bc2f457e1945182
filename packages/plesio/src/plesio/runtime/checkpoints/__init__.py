"""Checkpoints: the whole of a run at one moment; a crash at any byte leaves the one before.

=============  ========================================================================================
file           concept
=============  ========================================================================================
folder         a run's checkpoints on disk: manifests, checksums, which is the latest, which are kept
claim          one job a folder
catalogue      what checkpoints there are, and whether they are whole, for people
tensors        parameters, buffers and the optimizer's state in torch.distributed.checkpoint's format
reading        the same, read: one copy of each tensor, and nothing that can run
worker         what is one worker's own: random states, its optimizer's state, the user's objects
saver          copies what is to be written, at a quiescent point
writing        writes behind training, and commits when all workers have written
trained_with   the optimizer that a checkpoint was trained with, and whether it still is
beginning      how a run with checkpoints begins on one worker
part_reports   reports of processes to each other that their parts are written
setting        the user's arguments
=============  ========================================================================================
"""
