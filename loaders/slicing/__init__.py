"""Which bytes of a checkpoint each rank of a tensor-, expert- or pipeline-parallel engine keeps.

Arithmetic on a manifest, a config.json and a table of rules; nothing here does I/O on weights or
imports torch. `build.plan_rank` makes a `plan.RankPlan`, which says, parameter by parameter, what a
slicing executor has to copy where.
"""
