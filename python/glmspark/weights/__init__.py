"""Weights: a content-addressed store that fetches, verifies, shares and carries them.

``blobs/sha256/ab/<hex>`` is the one copy of every file, a manifest says which files a
repository has at a commit, and a view is the folder of relative links that vLLM opens.
"""
