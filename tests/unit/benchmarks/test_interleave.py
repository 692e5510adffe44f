from benchmarks.interleave import interleave, ratio


def test_repetitions_alternate_their_order_and_warmup_is_dropped():
    calls = []
    results = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repetitions=2, warmup=1)
    assert calls == ["b", "a", "a", "b", "b", "a"]
    assert [len(values) for values in results.values()] == [2, 2]


def test_results_stay_with_their_repetition():
    counter = iter(range(10))
    results = interleave({"a": lambda: next(counter), "b": lambda: next(counter)}, repetitions=2)
    assert results == {"a": [0, 3], "b": [1, 2]}


def test_ratio_is_taken_within_each_repetition():
    assert ratio({"a": [2.0, 30.0], "b": [1.0, 10.0]}, "a", "b") == [2.0, 3.0]
