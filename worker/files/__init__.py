"""Deciding over files: records in, the same records with their answers out, in order, resumable."""
