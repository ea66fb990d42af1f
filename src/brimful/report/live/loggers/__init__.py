"""One file per logger; its name is the one that `run.loggers` lists, its `LOGGER` the value that
says how to write to it (brimful.report.live.logger).
"""
