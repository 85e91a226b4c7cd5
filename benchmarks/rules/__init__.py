"""The parts of audit_rules.py."""
