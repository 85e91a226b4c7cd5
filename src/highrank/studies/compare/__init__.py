"""The comparison: which output layer is best for a text, fairly and with error bars."""
