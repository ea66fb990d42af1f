"""One file per training method; its name is the recipe's `method`, its `METHOD` the value the loop
uses.
"""
