import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scalerl.training.rollout.torch.layout import LENGTH_STEP, HalvedRows, RowLayout

lengths = st.lists(st.lists(st.integers(0, 100), min_size=7, max_size=7), min_size=1, max_size=8)


@given(lengths, st.integers(1, 4))
def test_rows_in_use_come_first_in_covering_spans(steps, row_step):
    layout = RowLayout(7, max_length=100, row_step=row_step)
    for needed in map(np.array, steps):
        _, spans = layout.arrange(needed)
        assert sorted(layout.row) == list(range(7))
        assert layout.row[layout.slot].tolist() == list(range(7))
        by_row, num_used = needed[layout.slot], int((needed > 0).sum())
        assert (by_row[:num_used] > 0).all()
        assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])][: len(spans)]
        stop = spans[-1].stop if spans else 0
        assert stop == min(-(-num_used // row_step) * row_step, 7)
        for span in spans:
            longest = by_row[span.start : span.stop].max()
            assert longest <= span.filled <= min(100, longest + LENGTH_STEP - 1)


@given(st.lists(st.lists(st.integers(0, 100), min_size=12, max_size=12).filter(any), min_size=1, max_size=8))
def test_halved_rows_have_all_slots_in_use(steps):
    layout = HalvedRows(12, max_length=100, least_rows=3)
    for needed in map(np.array, steps):
        before = layout.row.copy()
        moved, (span,) = layout.arrange(needed)
        assert sorted(layout.row) == list(range(12))
        assert layout.row[layout.slot].tolist() == list(range(12))
        assert span.stop == min(size for size in (12, 6, 3) if size >= (needed > 0).sum())
        assert (layout.row[needed > 0] < span.stop).all()
        assert sorted(moved) == np.flatnonzero(layout.row != before).tolist()
        assert needed.max() <= span.filled <= min(100, needed.max() + LENGTH_STEP - 1)


@given(lengths)
def test_only_slots_that_must_move_are_moved(steps):
    layout = RowLayout(7, max_length=100)
    contents = np.arange(7)  # What each row holds: the slot it belongs to.
    for needed in map(np.array, steps):
        before = layout.row.copy()
        moved, _ = layout.arrange(needed)
        assert sorted(moved) == sorted(np.flatnonzero((layout.row != before) | np.isin(np.arange(7), moved)))
        held = contents.copy()
        contents[layout.row[moved]] = held[before[moved]]
        assert contents[layout.row].tolist() == list(range(7))
        assert layout.arrange(needed)[0].tolist() == []
