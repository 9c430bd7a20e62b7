"""Implements torch's flex_attention. Score and mask functions are traced and translated into the language of
docs/custom_scores.md.
"""
