"""Tenants' documents: what there is, where it lies, how it leaves."""
