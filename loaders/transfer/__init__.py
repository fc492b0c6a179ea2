"""Host tensors to a device: each way that engines do it, and those that they could."""
