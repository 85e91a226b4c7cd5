"""How many threads the matrix multiplies have."""


def set_threads(threads: int | None) -> None:
    """None leaves it to torch, which takes all cores."""
    import torch

    if threads is None:
        return
    if threads < 1:
        raise ValueError(f"threads must be at least 1, got {threads}")
    torch.set_num_threads(threads)
