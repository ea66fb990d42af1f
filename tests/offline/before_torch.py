"""Imported before torch is, by the tests and the process that others are forked from: as on the
command line, OpenMP threads that wait for each other soon let others work. They read this once.

Without it, a training on two threads took up to four times as much CPU time beside other workers.
"""

from brimful.base.env import keep_few_kernels, wait_politely

wait_politely()
keep_few_kernels()
