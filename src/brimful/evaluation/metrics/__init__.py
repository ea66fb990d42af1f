"""One file per metric, found by its name; each holds a `METRIC`."""
