"""Measurements that return dataclasses and print nothing."""
