"""Components that stand beside a head: one file each."""
