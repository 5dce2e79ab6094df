"""The geometry of the bar charts."""

from itertools import pairwise

from oncehook.web.charts import HEIGHT, WIDTH, chart

MINUTE, DAY = 60, 86400


def test_highest_bar_sets_the_scale_and_the_total_is_the_sum() -> None:
    result = chart([0, 60, 120], [1, 4, 2], MINUTE)
    first, highest, last = result.bars
    assert highest.height > last.height > first.height > 0
    assert highest.height == HEIGHT - 4 and highest.y == 4
    assert (result.total, result.peak) == (7, 4)


def test_bars_lie_side_by_side_inside_the_chart() -> None:
    bars = chart(list(range(0, 600, 60)), [1] * 10, MINUTE).bars
    assert all(left.x + left.width <= right.x for left, right in pairwise(bars))
    assert bars[-1].x + bars[-1].width <= WIDTH


def test_small_number_next_to_a_large_one_is_still_visible() -> None:
    small, _ = chart([0, 60], [1, 100_000], MINUTE).bars
    assert small.height == 2


def test_empty_bucket_has_no_height_and_no_buckets_make_an_empty_chart() -> None:
    assert chart([0], [0], MINUTE).bars[0].height == 0
    empty = chart([], [], MINUTE)
    assert (empty.bars, empty.total, empty.peak, empty.first, empty.last) == ((), 0, 0, "", "")


def test_labels_have_the_number_and_a_time_that_fits_the_bucket() -> None:
    assert chart([3600], [1234], MINUTE).bars[0].label == "1,234 at 01:00"
    assert chart([3600], [5], 6 * 3600).bars[0].label == "5 at 01 Jan 01:00"
    assert chart([DAY], [5], DAY).first == "02 Jan"
