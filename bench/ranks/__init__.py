"""Several ranks that really share a storage: torchrun starts them, a runner on each node lets them
go and hears what they did.

start, worker -> what torchrun runs; ways -> how a rank loads; team -> the runner's side of its
ranks; measure, course -> samples and a run of them; failure, times -> arithmetic and words;
merge -> the runs of several nodes as one; show -> tables.
"""
