"""Verifiers, one a file; the file's name is the verifier's."""
