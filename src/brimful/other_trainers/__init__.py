"""Jobs of other training tools: their configurations read into facts, their steps traced, planned for
a device.
"""
