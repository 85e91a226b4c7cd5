"""`highrank audit`: the output layers of models, examined on a text."""
