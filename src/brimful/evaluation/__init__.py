"""Honest numbers about a trained model: likelihood with intervals, baselines on the same tokens, a
diagnosis.
"""
