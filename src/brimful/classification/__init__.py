"""Labels for texts: the trained classifier, its calibration, its thresholds, and files of texts in
and labels out.
"""
