"""One file per step that prepares a text; its name is the step's, its `STEP` the function from text
to text.
"""
