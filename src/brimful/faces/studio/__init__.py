"""The web page: will it fit, what ran, try it."""
