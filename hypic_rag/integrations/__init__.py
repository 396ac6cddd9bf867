"""Adapters: what other libraries ask for, over this one."""
