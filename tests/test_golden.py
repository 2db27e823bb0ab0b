"""The numbers that were there before the library was rebuilt still come out: tests/golden/numbers.json, taken again."""

import json
import math

import pytest
from golden import numbers

KEPT = json.loads(numbers.FILE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("maps")


def differences(kept, made, where=""):
    """Places where two nested results differ: numbers by more than one part in a million or 1e-7, the rest at all.

    Networks run in float32, whose sums depend on the number of threads; that moves a score by some 1e-9.
    """
    if isinstance(kept, dict) and isinstance(made, dict):
        if kept.keys() != made.keys():
            return [f"{where}: {sorted(kept.keys() ^ made.keys())[:5]} on one side only"]
        return [found for key in kept for found in differences(kept[key], made[key], f"{where} > {key}")]
    if isinstance(kept, list) and isinstance(made, list) and len(kept) == len(made):
        return [found for k, pair in enumerate(zip(kept, made)) for found in differences(*pair, f"{where}[{k}]")]
    if isinstance(kept, float) and isinstance(made, (int, float)):
        return [] if math.isclose(kept, made, rel_tol=1e-6, abs_tol=1e-7) else [f"{where}: {kept} became {made}"]
    return [] if kept == made else [f"{where}: {kept} became {made}"]


def test_every_part_is_compared(folder):
    assert set(KEPT) == set(numbers.parts(folder)) and len(KEPT) == 31
    assert differences({"a": [1.0, None]}, {"a": [1.00001, None]}) and differences({"a": 1.0}, {"b": 1.0})


@pytest.mark.filterwarnings("ignore:words that this model never saw")
@pytest.mark.parametrize("part", list(KEPT))
def test_the_numbers_have_not_moved(part, folder):
    make, *given = numbers.parts(folder)[part]
    assert not differences(KEPT[part], json.loads(json.dumps(make(*given)))), part
