"""Put one small bug at a time into a copy of the source, and run the tests that are to notice it.

    python tests/invariants/source_mutations.py --state source_mutations.json
    python tests/invariants/source_mutations.py --only "the temporal penalty crosses sequences"

Results are kept as they come: the same command continues, and repeats what has changed since. It
ends with code 1 if a bug survived. The names stay when code moves; `file`, `old` and `tests` follow
it. A snippet must occur once in its file, and leave it a program when it is replaced.
"""

import argparse
import ast
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE, TESTS = ROOT / "src", ROOT / "tests"
SECONDS = 300
# Of pytest: all passed, some failed. Any other code says nothing about the mutation.
PASSED, FAILED = 0, 1
PYTEST = ("-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-r", "fE")


@dataclass(frozen=True)
class Mutation:
    """A bug: in `file`, below src/highrank, the snippet `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Files below tests that are to fail."""


OPS = (
    Mutation(
        "an impossible target has a gradient",
        "ops/mixture_cross_entropy/stream.py",
        "(joint - log_p).exp_().masked_fill_(log_p == -torch.inf, 0.0)",
        "(joint - log_p).exp_()",
        ("ops/mixture_cross_entropy/test_impossible_targets.py",),
    ),
    Mutation(
        "the gradient of extra terms is lost",
        "ops/mixture_cross_entropy/stream.py",
        "None if part.extra is None else -posterior[:, K:],",
        "None if part.extra is None else torch.zeros_like(posterior[:, K:]),",
        ("ops/mixture_cross_entropy/test_contract.py",),
    ),
    Mutation(
        "the bias' gradient of a chunk replaces that of the chunks before",
        "ops/mixture_cross_entropy/stream.py",
        "gradients.bias.addmv_(slope.T, factor.flatten())",
        "gradients.bias.copy_(slope.T @ factor.flatten())",
        ("ops/mixture_cross_entropy/test_contract.py",),
    ),
    Mutation(
        "the mean counts weighted targets instead of their weights",
        "ops/loss/targets.py",
        "possible = mass.masked_fill(impossible, 0.0).sum()",
        "possible = (mass.masked_fill(impossible, 0.0) > 0).sum()",
        ("ops/mixture_cross_entropy/test_definition.py",),
    ),
    Mutation(
        "a shift is short by one token",
        "ops/loss/targets.py",
        "return target[..., shift:]",
        "return target[..., shift - 1 : -1]",
        ("ops/mixture_cross_entropy/test_contract.py",),
    ),
    Mutation(
        "gradients of contexts are not summed over processes",
        "ops/mixture_cross_entropy/stream.py",
        "reducer.sum_in_place(gradients.context)",
        "gradients.context.contiguous()",
        ("ops/mixture_cross_entropy/test_contract.py",),
    ),
    Mutation(
        "the compiled log-probability has no bias",
        "ops/mixture_log_prob.py",
        "log_q = _full(linear(context[:, k], weight, bias)).log_softmax(-1)  # (N, V)",
        "log_q = _full(linear(context[:, k], weight)).log_softmax(-1)  # (N, V)",
        ("heads/test_mixture.py",),
    ),
    Mutation(
        "the streamed loss scales all softmaxes by the first one's posterior",
        "ops/streamed_cross_entropy.py",
        "factor[:, block.softmax, None],",
        "factor[:, :1],",
        ("ops/test_streamed_cross_entropy.py",),
    ),
    Mutation(
        "a temperature is applied twice",
        "ops/sampling.py",
        "/ temperature).log_softmax(-1)",
        "/ temperature**2).log_softmax(-1)",
        ("ops/test_sampling.py",),
    ),
    Mutation(
        "dropout draws a mask for each time step",
        "ops/dropout.py",
        "shape[shared_dim] = 1",
        "shape[shared_dim] = x.shape[shared_dim]",
        ("ops/test_dropout.py",),
    ),
)

HEADS = (
    Mutation(
        "the weights of the components are not normalised",
        "heads/bases/mixture.py",
        "return logits.log_softmax(-1, dtype=at_least_float32(logits.dtype))",
        "return logits.to(at_least_float32(logits.dtype))",
        ("heads/test_contract.py",),
    ),
    Mutation(
        "responsibilities divide by the likelihood",
        "heads/bases/mixture.py",
        "joint = log_weight - loss",
        "joint = log_weight + loss",
        ("heads/test_mixture.py",),
    ),
    Mutation(
        "the noise of a nearly equal start does not sum to zero",
        "heads/bases/start.py",
        "(noise - noise.mean(0)).to(weight.device)",
        "noise.to(weight.device)",
        ("heads/test_start.py",),
    ),
    Mutation(
        "the first token of a tail counts as one of the band before",
        "heads/bases/adaptive.py",
        "rank.new_tensor(self.cutoffs), right=True)",
        "rank.new_tensor(self.cutoffs), right=False)",
        ("heads/test_contract.py",),
    ),
    Mutation(
        "tokens drawn from a second tail come from the first",
        "heads/bases/adaptive.py",
        "rank[inside] = found + self.cutoffs[tail - 1]",
        "rank[inside] = found + self.cutoffs[0]",
        ("heads/test_contract.py",),
    ),
    Mutation(
        "the pointer copies the token before a state, not the one after it",
        "heads/components/pointer.py",
        "candidate = token[:, seen + 1]",
        "candidate = token[:, seen]",
        ("heads/components/test_pointer.py",),
    ),
    Mutation(
        "the pointer's mask hides the pairs that exist",
        "heads/components/pointer.py",
        "log_attention.exp().masked_fill(candidate < 0, 0.0)",
        "log_attention.exp().masked_fill(candidate >= 0, 0.0)",
        ("heads/test_contract.py",),
    ),
    Mutation(
        "the weights of the chosen components do not sum to one",
        "heads/sparse_mos.py",
        "empty.scatter(-1, chosen, kept.log_softmax(-1))",
        "empty.scatter(-1, chosen, kept)",
        ("heads/test_sparse_mos.py",),
    ),
    Mutation(
        "the weights of the components come from the first layer",
        "heads/doc.py",
        "through(self.prior, hidden[..., -self.layer_sizes[-1] :])",
        "through(self.prior, hidden[..., : self.layer_sizes[-1]])",
        ("heads/test_doc.py",),
    ),
)

MODELS = (
    Mutation(
        "the state of a window keeps its graph",
        "models/language_model.py",
        "state = map_state(torch.Tensor.detach, read.state)",
        "state = read.state",
        ("models/test_language_model.py",),
    ),
    Mutation(
        "embedding dropout drops positions, not tokens",
        "models/backbone.py",
        "return found * mask[tokens]",
        "return found * dropout_mask((*tokens.shape, 1), p, found)",
        ("models/test_awd_lstm.py",),
    ),
    Mutation(
        "borrowed weights are kept without a copy",
        "models/weights.py",
        "saved = [p.detach().clone() for p in model.parameters()]",
        "saved = [p.detach() for p in model.parameters()]",
        ("models/test_language_model.py",),
    ),
)

TRAINING = (
    Mutation(
        "the temporal penalty crosses sequences",
        "models/backbone.py",
        "(out.raw[1:] - out.raw[:-1])",
        "(out.raw[:, 1:] - out.raw[:, :-1])",
        ("models/test_awd_lstm.py",),
    ),
    Mutation(
        "a short window has the learning rate of a long one",
        "training/schedule.py",
        "return stage.lr * factor * ratio[0] / ratio[1]",
        "return stage.lr * factor",
        ("training/test_trainer.py",),
    ),
    Mutation(
        "micro-batches count alike whatever their size",
        "training/trainer.py",
        "fraction = part.num_targets / self.num_targets",
        "fraction = (self.micro_batch_size or batch_size) / batch_size",
        ("training/test_trainer.py",),
    ),
    Mutation(
        "validation does not use the average",
        "training/session.py",
        "with self.trainer.averaged(), gathered(self.model):",
        "with restored(self.model), gathered(self.model):",
        ("training/test_session.py",),
    ),
    Mutation(
        "resuming does not restore the random numbers of dropout",
        "training/trainer.py",
        'torch.set_rng_state(state["torch"])',
        'assert "torch" in state',
        ("training/test_session.py",),
    ),
    Mutation(
        "resuming leaves lines in the log that came after the checkpoint",
        "training/log.py",
        "os.ftruncate(self.handle, len(content))",
        "os.fsync(self.handle)",
        ("training/test_log.py",),
    ),
    Mutation(
        "two processes may train one run",
        "training/log.py",
        "if not lock_file(self.handle):",
        "if self.handle < 0:",
        ("training/test_log.py",),
    ),
    Mutation(
        "the hash of a checkpoint is not compared",
        "training/checkpoint.py",
        'if state.pop("sha256") != content_sha256(state):',
        'if not state.pop("sha256"):',
        ("invariants/test_mutations.py",),
    ),
    Mutation(
        "the average gives its start the weight of an update",
        "training/averaging.py",
        "(1 + self.power) / (self.count + self.power)",
        "(1 + self.power) / (self.count + 1 + self.power)",
        ("training/test_averaging.py",),
    ),
)

EVALUATION = (
    Mutation(
        "static evaluation forgets the state between windows",
        "evaluation/static.py",
        "state = out.state\n            total += out.loss.item()",
        "total += out.loss.item()",
        ("evaluation/test_static.py",),
    ),
    Mutation(
        "the cache knows the token that it predicts",
        "evaluation/cache.py",
        "tril_(num_before - 1)",
        "tril_(num_before)",
        ("evaluation/test_cache.py",),
    ),
    Mutation(
        "gradient statistics are sums instead of means",
        "evaluation/dynamic.py",
        "s.div_(len(starts)).sqrt_()",
        "s.sqrt_()",
        ("evaluation/test_dynamic.py",),
    ),
    Mutation(
        "the decay of dynamic evaluation is not clipped",
        "evaluation/dynamic.py",
        "(relative * sigma).clamp_(max=1.0)",
        "(relative * sigma)",
        ("evaluation/test_dynamic.py",),
    ),
)

ANALYSIS = (
    Mutation(
        "the effective rank sums singular values instead of their squares",
        "analysis/rank.py",
        "values.double().square().flip(0)",
        "values.double().flip(0)",
        ("analysis/test_rank.py",),
    ),
    Mutation(
        "the divergence counts pairs of a context with itself",
        "analysis/divergence.py",
        "torch.dot(prob / T, log_prob / T).item()) * T / (T - 1)",
        "torch.dot(prob / T, log_prob / T).item())",
        ("analysis/test_divergence.py",),
    ),
    Mutation(
        "a token can lead against a twin of larger bias",
        "analysis/unargmaxable/__init__.py",
        "if own < largest:",
        "if own > largest:",
        ("analysis/unargmaxable/test_unargmaxable.py",),
    ),
    Mutation(
        "Holm's correction steps up instead of down",
        "analysis/contrasts.py",
        "(size - place) * p_values[index]",
        "(place + 1) * p_values[index]",
        ("analysis/test_contrasts.py",),
    ),
    Mutation(
        "an interval has the quantile of one side",
        "analysis/contrasts.py",
        "return t_quantile((1 + probability) / 2, self.degrees)",
        "return t_quantile(probability, self.degrees)",
        ("analysis/test_contrasts.py",),
    ),
    Mutation(
        "the error of paired differences divides by n",
        "analysis/contrasts.py",
        "differences.std(1, ddof=1)",
        "differences.std(1)",
        ("analysis/test_contrasts.py",),
    ),
)

FILES = (
    Mutation(
        "streams are interleaved instead of contiguous",
        "data/batches.py",
        ".reshape(batch_size, length)",
        ".reshape(length, batch_size).T",
        ("evaluation/test_static.py",),
    ),
    Mutation(
        "the hash of a token file is not compared",
        "data/corpus.py",
        "if file_sha256(file) != split.sha256:",
        "if not file_sha256(file):",
        ("data/test_corpus.py",),
    ),
    Mutation(
        "a split begins within a line",
        "data/text.py",
        "middle = start if is_first_line else window + _last_break(block)",
        "middle = start + position",
        ("data/test_text.py",),
    ),
    Mutation(
        "a file takes its place before it is on the disk",
        "files.py",
        "_sync(temporary)\n        os.replace(temporary, path)",
        "os.replace(temporary, path)",
        ("test_files.py",),
    ),
    Mutation(
        "generation forgets the prompt but its last token",
        "generation.py",
        "state = model.read(ids[:-1, None], state).state",
        "model.read(ids[:-1, None], state)",
        ("test_generation.py",),
    ),
    Mutation(
        "an upgrade changes the caller's random numbers",
        "integrations/huggingface/upgrade.py",
        "with torch.random.fork_rng(devices=[]):",
        "with torch.random.fork_rng(enabled=False):",
        ("integrations/huggingface/test_starts.py",),
    ),
    Mutation(
        "labels are not shifted",
        "integrations/huggingface/loss.py",
        "if not is_shifted:",
        "if is_shifted:",
        ("integrations/huggingface/test_training.py",),
    ),
)

MUTATIONS = (*OPS, *HEADS, *MODELS, *TRAINING, *EVALUATION, *ANALYSIS, *FILES)


def path_of(mutation, source=SOURCE):
    return source / "highrank" / mutation.file


def mutated(mutation):
    """The text of the file with the bug in it."""
    text = path_of(mutation).read_text(encoding="utf-8")
    return text.replace(mutation.old, mutation.new)


def problem(mutation):
    """Why the mutation says nothing about the present source; None if it does."""
    path = path_of(mutation)
    if not path.is_file():
        return f"{path} is missing"
    if (count := path.read_text(encoding="utf-8").count(mutation.old)) != 1:
        return f"the snippet must occur once in {mutation.file}, got {count} times"
    if missing := [test for test in mutation.tests if not (TESTS / test).is_file()]:
        return f"tests/{missing[0]} is missing"
    try:
        ast.parse(mutated(mutation))
    except SyntaxError as error:
        return f"the file is no program with the new snippet: {error}"
    return None


def fingerprint(mutation):
    """A hash of the mutation, its file and its tests: what changes asks for another run."""
    digest = hashlib.sha256(repr(mutation).encode())
    for path in (path_of(mutation), *(TESTS / test for test in mutation.tests)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def copy_source(folder):
    # Without bytecode: that of the sound file could be taken for the mutated one's.
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE / "highrank", folder / "highrank", ignore=ignored)


def run_tests(folder, tests):
    """pytest's code and output with the package in a folder; the code is None after a time-out.

    Processes that tests started end with them.
    """
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", *PYTEST, "--basetemp", str(folder / "pytest")]
    with subprocess.Popen(
        [*command, *(f"tests/{test}" for test in tests)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return None, ""
    return process.returncode, output


def first_failure(output):
    """The test of pytest's first line FAILED or ERROR; parameters may have spaces."""
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind in ("FAILED", "ERROR") and "::" in rest:
            return rest.split(" - ")[0]
    return "an unnamed test"


def trial(mutation):
    """What the tests do with the bug."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        copy_source(Path(name))
        path_of(mutation, Path(name)).write_text(mutated(mutation), encoding="utf-8")
        code, output = run_tests(Path(name), mutation.tests)
    if code is None:
        result = f"caught by the time limit of {SECONDS} s"
    elif code == FAILED:
        result = f"caught by {first_failure(output)}"
    elif code == PASSED:
        result = "SURVIVED"
    else:
        result = f"UNKNOWN: pytest ended with code {code}: {output[-300:]!r}"
    found = {"result": result, "seconds": round(time.monotonic() - start, 1)}
    return found | {"fingerprint": fingerprint(mutation)}


def check_clean(mutations):
    """End unless the tests pass without a mutation."""
    tests = sorted({test for mutation in mutations for test in mutation.tests})
    with tempfile.TemporaryDirectory() as name:
        copy_source(Path(name))
        for done, test in enumerate(tests, 1):
            code, output = run_tests(Path(name), [test])
            progress(f"{done}/{len(tests)} without a mutation: tests/{test}, code {code}")
            if code != PASSED:
                sys.exit(f"tests/{test} must pass without a mutation:\n{output[-3000:]}")


def progress(text):
    print(text, file=sys.stderr, flush=True)


def run_all(mutations, state, path, jobs):
    """Add the results of those that have none yet to the state."""
    left = [m for m in mutations if state.get(m.name, {}).get("fingerprint") != fingerprint(m)]
    pool = ThreadPoolExecutor(jobs)
    running = {pool.submit(trial, mutation): mutation for mutation in left}
    try:
        for done, future in enumerate(as_completed(running), 1):
            name = running[future].name
            state[name] = future.result()
            path.with_suffix(".new").write_text(json.dumps(state, indent=1) + "\n")
            os.replace(path.with_suffix(".new"), path)
            found = state[name]
            progress(f"{done}/{len(left)} {name}: {found['result']}, {found['seconds']} s")
    finally:
        pool.shutdown(cancel_futures=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="mutations with these names")
    parser.add_argument("--state", type=Path, default=Path("source_mutations.json"))
    parser.add_argument("--jobs", type=int, default=1, help="mutations at once")
    parser.add_argument(
        "--check-clean", action="store_true", help="first run the tests as they are"
    )
    options = parser.parse_args()
    # Shells start background jobs with SIGINT ignored, and tests that send it would fail.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    known = [mutation.name for mutation in MUTATIONS]
    assert len(known) == len(set(known))
    if unknown := set(options.only or ()) - set(known):
        sys.exit(f"--only must have names of mutations, got {sorted(unknown)}")
    mutations = [m for m in MUTATIONS if options.only is None or m.name in options.only]
    if problems := [f"{m.name}: {found}" for m in mutations if (found := problem(m))]:
        sys.exit("\n".join(problems))
    if options.check_clean:
        check_clean(mutations)
    state = json.loads(options.state.read_text()) if options.state.exists() else {}
    run_all(mutations, state, options.state, options.jobs)
    results = {mutation.name: state[mutation.name]["result"] for mutation in mutations}
    for name, result in results.items():
        print(f"{name}: {result}")
    num_caught = sum(result.startswith("caught") for result in results.values())
    print(f"{num_caught} of {len(results)} caught")
    sys.exit(num_caught < len(results))


if __name__ == "__main__":
    main()
