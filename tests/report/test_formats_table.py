from rich.console import Console

from highrank.report.formats import make_table


def printed(table, width):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    return captured.get()


def test_numbers_are_aligned_to_the_right_and_text_to_the_left():
    table = make_table(("head",), ("excess",), title="Title", caption="Caption")
    table.add_row("MoS", "0.1")
    lines = [line.rstrip() for line in printed(table, 80).splitlines()]
    assert lines[0] == "Title" and lines[-1] == "Caption"
    assert [line.split() for line in (lines[2], lines[4])] == [["head", "excess"], ["MoS", "0.1"]]
    assert lines[2].index("head") == lines[4].index("MoS") and len(lines[2]) == len(lines[4])


def test_where_space_is_short_text_is_folded_and_numbers_stay():
    table = make_table(("name",), ("tokens",))
    table.add_row("a-name-without-spaces", "1,234,567")
    text = printed(table, 20)
    assert "1,234,567" in text and "…" not in text
    assert "".join(line[:9].strip() for line in text.splitlines()[3:]) == "a-name-without-spaces"
