"""Where weights end up: an accelerator, or a second buffer of host memory, behind one interface.

Importing this package doesn't import torch, so that a torch that can't be imported can be explained
(see `loaders.device.faults`).
"""
