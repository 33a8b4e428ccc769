import pytest
import torch

from scalerl.training.rl.segments import dense_index, segment_max, segment_min


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(
    "ids", [[], [0], [0, 0, 1, 1, 2], [0, 2, 2], [1, 1, 2], [0, 1, 0], [3, 0, -1, 3], [-1, 0, 1], [7, 7]]
)
def test_ids_are_renumbered_in_sorted_order(ids, dtype):
    index, num = dense_index(torch.tensor(ids, dtype=dtype))
    known = sorted(set(ids))
    assert index.tolist() == [known.index(i) for i in ids]
    assert index.dtype == torch.long
    assert num == len(known)


def test_lowest_and_highest_of_each_segment():
    index, values = torch.tensor([0, 1, 0, 2, 1]), torch.tensor([-3.0, 2.0, -1.0, 0.5, 4.0])
    assert segment_min(values, index, 3).tolist() == [-3.0, 2.0, 0.5]
    assert segment_max(values, index, 3).tolist() == [-1.0, 4.0, 0.5]
