"""The demo: heads against languages whose true distribution is known."""
