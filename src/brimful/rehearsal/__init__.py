"""The real steps of a run, on fake tensors: no weights, no device, seconds."""
