"""Numbers that must not move: heads, losses, runs, audits, upgrades and comparisons.

    python tests/invariants/golden.py --write base.json
    python tests/invariants/golden.py --compare base.json

The second command computes all values anew and lists those that differ. It ends with code 0 if all
are equal to the bit, with --tolerance also if they are equal within rounding; both commands must
run on the same machine. The values in `golden.json` are compared within rounding on any machine:

    python tests/invariants/golden.py --only heads losses/float64 --brief --write golden.json
"""

import argparse
import hashlib
import json
import math
import sys
import time
from collections import Counter
from pathlib import Path

import golden_runs
import golden_values
import numpy as np
import torch

# With the precision of numbers that are no tensors; what takes long comes last.
SECTIONS = {
    "heads": (golden_values.heads, "float64"),
    "init": (golden_values.starts, "float32"),
    "draws": (golden_values.draws, "float64"),
    "losses": (golden_values.losses, "float64"),
    "compiled": (golden_values.compiled, "float64"),
    "compare": (golden_runs.comparisons, "float64"),
    "upgrade": (golden_runs.upgrades, "float32"),
    "runs": (golden_runs.runs, "float32"),
}
EQUAL, DIFFERENT, MISSING, NEW = "equal to the bit", "different", "missing", "new"
CLOSE = "equal within 1e-9 (float64) or 1e-5 (float32)"
# Relative to the norm. The floor is for gradients that consist of rounding errors.
TOLERANCE, TOLERANCES, FLOOR = 1e-9, {"float32": 1e-5}, 1e-3
# Summaries count what is not finite.
INSTEAD = {"nan": 7.0, "posinf": 11.0, "neginf": -11.0}


def record(value, precision):
    """Hash and summary of numbers, or anything else as text.

    The summary is the norm and a sum with weights, which also changes if numbers are permuted.
    """
    if isinstance(value, torch.Tensor):
        precision = str(value.dtype).removeprefix("torch.")
        numbers = value.detach().contiguous().numpy()
    else:
        numbers = as_numbers(value)
    if numbers is None:
        return {"text": value if isinstance(value, str) else json.dumps(value)}
    shape, known = list(numbers.shape), np.nan_to_num(numbers.astype(float).ravel(), **INSTEAD)
    return {
        "dtype": precision,
        "shape": shape,
        "norm": float(np.sqrt(np.square(known).sum())),
        "dot": float(np.sum(known * np.cos(np.arange(known.size)))),
        "sha256": hashlib.sha256(f"{shape}".encode() + numbers.tobytes()).hexdigest()[:16],
    }


def as_numbers(value):
    """A float, or lists of numbers with a float among them, as an array; else None."""
    leaves = [value]
    while any(isinstance(leaf, list) for leaf in leaves):
        leaves = [x for leaf in leaves for x in (leaf if isinstance(leaf, list) else [leaf])]
    is_numeric = all(leaf is None or type(leaf) in (int, float) for leaf in leaves)
    if not is_numeric or not any(isinstance(leaf, float) for leaf in leaves):
        return None
    return np.array([math.nan if leaf is None else leaf for leaf in leaves])


def compute(only=()):
    """Records by key, of the sections that have keys with one of these prefixes."""
    found, start = {}, time.monotonic()
    for section, (cases, precision) in SECTIONS.items():
        if only and not any(f"{prefix}/".startswith(f"{section}/") for prefix in only):
            continue
        for prefix, values in cases():
            print(f"{time.monotonic() - start:6.1f} s  {prefix}", file=sys.stderr)
            for key, value in guarded(values):
                name = f"{prefix}/{key}".rstrip("/")
                assert name not in found, name
                found[name] = record(value, precision)
    return {key: value for key, value in found.items() if is_wanted(key, only)}


def guarded(values):
    """Yield the values; an error is one of them, and the last."""
    try:
        yield from values
    except Exception as error:
        yield "failed", f"{type(error).__name__}: {error}"


def is_wanted(key, only):
    return not only or any(f"{key}/".startswith(f"{prefix}/") for prefix in only)


def brief(found):
    """Text, or norm and weighted sum to eleven digits."""
    if "text" in found:
        return found["text"]
    return [float(f"{found[name]:.11g}") for name in ("norm", "dot")]


def read(path, only=()):
    """Return where the values of a file were computed, and those with one of these prefixes."""
    stored, values = json.loads(path.read_text()), {}
    for prefix, group in stored["values"].items():
        for rest, value in group.items():
            if isinstance(value, list):
                value = dict(zip(("norm", "dot"), value, strict=True))
            elif isinstance(value, str):
                value = {"text": value}
            values[f"{prefix}/{rest}"] = value
    return stored["about"], {key: value for key, value in values.items() if is_wanted(key, only)}


def write(path, values):
    """One value in a line, in groups whose keys begin alike."""
    groups, join = {}, ",\n".join
    for key, value in values.items():
        parts = key.split("/")
        place = min(3, len(parts) - 1)
        line = f"{json.dumps('/'.join(parts[place:]))}: {json.dumps(value)}"
        groups.setdefault("/".join(parts[:place]), []).append(line)
    blocks = (f"{json.dumps(prefix)}: {{\n{join(lines)}\n}}" for prefix, lines in groups.items())
    path.write_text(f'{{"about": {json.dumps(about())}, "values": {{\n{join(blocks)}\n}}}}\n')


def about():
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "numpy": np.__version__, "cpu": capability}


def classify(old, new):
    """Compare a record with an older one, which may be brief; None where there is none."""
    if old is None or new is None:
        return NEW if old is None else MISSING
    if "text" in old or "text" in new:
        return EQUAL if old == new else DIFFERENT
    if old.get("sha256") == new["sha256"]:
        return EQUAL
    tolerance, norm = TOLERANCES.get(new["dtype"], TOLERANCE), max(old["norm"], new["norm"])
    most = norm * math.sqrt(math.prod(new["shape"]))
    is_close = old.get("shape", new["shape"]) == new["shape"]
    is_close &= abs(old["norm"] - new["norm"]) <= tolerance * (norm + FLOOR)
    is_close &= abs(old["dot"] - new["dot"]) <= tolerance * (most + FLOOR)
    return CLOSE if is_close else DIFFERENT


def compare(old, new):
    """Print what differs, by section; returns how many values there are of each class."""
    classes = {key: classify(old.get(key), new.get(key)) for key in {**old, **new}}
    for section in dict.fromkeys(key.split("/")[0] for key in classes):
        own = {key: found for key, found in classes.items() if key.split("/")[0] == section}
        print(f"{section}: {counted(Counter(own.values()))}")
        for kind in (CLOSE, DIFFERENT, MISSING, NEW):
            for key in [key for key, found in own.items() if found == kind]:
                texts = [shown(values[key]) for values in (old, new) if key in values]
                print(f"  {kind}: {key}: {' -> '.join(texts)}")
    return Counter(classes.values())


def counted(counts):
    return ", ".join(f"{number} {kind}" for kind, number in counts.items())


def shown(found):
    if "text" in found:
        return found["text"][:300]
    return f"{found.get('shape', '')} norm {found['norm']:.12g} dot {found['dot']:.12g}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--write", type=Path, metavar="FILE")
    task.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--only", nargs="+", default=[], metavar="PREFIX")
    parser.add_argument("--tolerance", action="store_true", help="accept rounding errors")
    parser.add_argument("--brief", action="store_true", help="write summaries only")
    options = parser.parse_args()
    torch.set_num_threads(1)
    new = compute(options.only)
    failed = [f"{key}: {new[key]['text']}" for key in new if key.endswith("/failed")]
    if options.write is not None:
        write(options.write, {key: brief(x) for key, x in new.items()} if options.brief else new)
        print(f"{len(new)} values", *failed, sep="\n")
        raise SystemExit(bool(failed))
    where, old = read(options.compare, options.only)
    if where != about():
        print(f"recorded with {where}, computed with {about()}")
    counts = compare(old, new)
    print(f"all: {counted(counts)}")
    raise SystemExit(not set(counts) <= ({EQUAL, CLOSE} if options.tolerance else {EQUAL}))


if __name__ == "__main__":
    main()
