from __future__ import annotations

import pickle

from hypothesis import example, given
from hypothesis import strategies as st

from deeprok.core.errors import DeeprokError, shown, unknown

texts = st.text(max_size=50).flatmap(lambda text: st.integers(1, 60).map(lambda times: text * times))


@given(texts)
@example("a\nb\r\nc\u2028d")
@example("\x1b[31mred\x07\ud800\x00")
@example("x" * 100_000)
@example("a b " * 100_000)
def test_any_text_is_one_line_of_a_sane_length(text: str) -> None:
    for sentence in (str(DeeprokError(f"box is {text}; give another")), str(unknown("env", text, ["cartpole"]))):
        assert sentence.isprintable()
        assert len(sentence) <= 400
    assert shown(text).isprintable()
    assert len(shown(text)) <= 82


def test_sentences_stay_as_they_are() -> None:
    sentence = f"/a/{'folder/' * 30}run is θ ≥ 0; it must be 'below' 1"
    assert str(DeeprokError(sentence)) == sentence
    assert shown("cart pole") == "'cart pole'"
    assert shown((1, 2.5)) == "(1, 2.5)"


def test_what_is_long_loses_its_middle() -> None:
    assert str(DeeprokError(f"is {'x' * 50 + 'y' * 50}; end")) == f"is {'x' * 50}{'y' * 3}…{'y' * 26}; end"
    assert shown(10**100) == f"1{'0' * 52}…{'0' * 26}"


def test_values_that_cannot_be_printed() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "a list that can't be printed"
    assert shown(10**5000) == "a int that can't be printed"
    while deep:  # or Python would free it recursively
        deep = deep[0]  # type: ignore[assignment]


def test_several_sentences_are_shortened_one_by_one() -> None:
    error = DeeprokError(*("seed " * 70 for _ in range(3)))
    assert str(error).count("; ") == 2
    assert len(str(error)) == 3 * len("seed " * 70) - 3 + 4
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301
