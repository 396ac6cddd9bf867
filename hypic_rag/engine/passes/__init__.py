"""Passes of a model: what its layers call while it runs, in torch and on a device. The verbs: ``base.Pass``."""
