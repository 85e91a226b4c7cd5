"""What `highrank train` refuses: in one line, before a folder is made."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "must be the path of a text or a preset of `highrank presets`, got"),
        (["penn-treebank"], "got 'penn-treebank': did you mean --corpus penn-treebank?"),
        (["cache"], "a folder of text must have files that end in .txt, got none in cache"),
        (["tale.txt", "--resume", "any"], "a run must be a folder"),
        (["tale.txt", "--corpus", "tale"], "--corpus must come without a text, got tale.txt"),
        (["--corpus", "nowhere"], "a corpus must be a prepared name"),
        (["ptb-mos"], "highrank data prepare penn-treebank"),
        (["--budget", "soon"], "a duration must be like 90s, 20m or 1.5h, got 'soon'"),
        (["--resume", "nothing"], "a run must be a folder that `highrank train` made, got nothing"),
        (["--corpus", "tale", "--head.kind", "softmax"], "for a tied softmax, got 192 and 64"),
        (["--corpus", "tale", "--device", "gpu"], "device"),
        (["--corpus", "tale", "--threads", "0"], "threads must be between 1 and"),
        (["--corpus", "tale", "--train.epochs", "0"], "train.epochs must be at least 1, got 0"),
        (["--corpus", "tale", "--threads", "100000"], "threads must be between 1 and"),
        (["--corpus", "tale", "--test-batch-size", "0"], "test-batch-size must be between 1 and"),
        (
            ["small-mos", "--corpus", "tale", "--head.num-components", "100000000"],
            "must fit into memory, got",
        ),
        (["--corpus", "tale", "--model.embedding-size", "9999999999"], "must be at most"),
    ],
)
def test_mistakes_are_one_line_and_leave_no_run_behind(arguments, message, highrank, trained):
    before = {path.name for path in trained.rglob("*")}
    code, _, errors = highrank("train", *arguments)
    assert code == 2
    assert message in errors.splitlines()[-1] and "Traceback" not in errors
    assert {path.name for path in trained.rglob("*")} == before
