"""The model of OKADFA: a GPT whose attention is softmax's, or its estimate from positive random
features in linear time.
"""
