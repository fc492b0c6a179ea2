"""What to change on this host or in the engine: each module is one kind of advice, a pure function
from what a run recorded to what to do, and None where the records hold no evidence for it."""
