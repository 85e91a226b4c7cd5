"""The bugs that are put into a copy of the source fit the source of today."""

import pytest
import source_mutations


@pytest.mark.parametrize("mutation", source_mutations.MUTATIONS, ids=lambda one: one.name)
def test_the_snippet_of_a_mutation_stands_in_the_source(mutation):
    assert source_mutations.problem(mutation) is None
