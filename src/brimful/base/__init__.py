"""What every stage may use and what uses no stage: errors, units, environment, discovery, run
folders.
"""
