"""What there is to compute with: catalog rows, this machine probed, and what follows from
either.
"""
