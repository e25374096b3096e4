"""Parameters are checked, unknown names included, and a second check in a live kernel finds the same."""

import math

import pytest

from resnorm_lib import parameters
from resnorm_lib.parameters import Choice, Integer, ParameterError, Real

SPECIFICATIONS = {"width": Integer(64, 16, 256, multiple=8), "rate": Real(0.1, 0.0, 1.0), "effort": Choice("published", "quick")}
OWN = "width = 64  # features\nrate = 0.1  # a number\neffort = 'published'  # or quick"
DEFAULTS = {"width": 64, "rate": 0.1, "effort": "published"}


def check(values=None, cells=(OWN,)):
    return parameters.check(DEFAULTS | (values or {}) | {"In": ["", *cells]}, **SPECIFICATIONS)


def test_published():
    checked = check()
    assert checked.published and not checked.quick
    assert dict(checked.values) == DEFAULTS


def test_changed_values_are_named():
    checked = check({"width": 96, "effort": "quick"})
    assert dict(checked.changed) == {"width": 96, "effort": "quick"}
    assert checked.quick and not checked.published


@pytest.mark.parametrize(
    "values, message",
    [
        ({"width": 8}, "width = 8 (int) is not allowed; it must be a multiple of 8 from 16 to 256"),
        ({"width": 264}, "width = 264 (int) is not allowed"),
        ({"width": 65}, "width = 65 (int) is not allowed; it must be a multiple of 8"),
        ({"width": 64.0}, "width = 64.0 (float) is not allowed"),
        ({"width": True}, "width = True (bool) is not allowed"),
        ({"width": "96"}, "width = '96' (str) is not allowed"),
        ({"rate": 1.5}, "rate = 1.5 (float) is not allowed; it must be a number from 0 to 1"),
        ({"rate": math.nan}, "rate = nan (float) is not allowed"),
        ({"rate": math.inf}, "rate = inf (float) is not allowed"),
        ({"rate": False}, "rate = False (bool) is not allowed"),
        ({"effort": "fast"}, "effort = 'fast' (str) is not allowed; it must be one of 'published', 'quick'"),
        ({"effort": ["quick"]}, "effort = ['quick'] (list) is not allowed"),
    ],
)
def test_bad_values(values, message):
    with pytest.raises(ParameterError) as error:
        check(values)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("values", [{"width": 16}, {"width": 256}, {"rate": 0}, {"rate": 1.0}])
def test_bounds_are_allowed(values):
    assert not check(values).published


def test_true_is_not_the_number_one():
    assert not Integer(1, 0, 2).accepts(True)
    assert not Real(1.0, 0.0, 2.0).accepts(True)


def test_misspelt_name():
    with pytest.raises(ParameterError, match=r"widht = 96 is not a parameter of this chapter \(did you mean width\?\)"):
        check({"widht": 96}, [OWN, "# Parameters\nwidht = 96\n"])


def test_a_name_like_no_other_lists_what_is_allowed():
    with pytest.raises(ParameterError, match="zzz = 'a' is not a parameter of this chapter; allowed are: effort, rate, width"):
        check({}, [OWN, "# Parameters\nzzz = 'a'\n"])


def test_a_name_added_by_hand_to_the_parameters_cell():
    with pytest.raises(ParameterError, match="depht = 3"):
        check({}, [OWN + "\ndepht = 3"])


@pytest.mark.parametrize("cell", ["widht: int = 3", "widht, rate = 3, 0.1", "rate = widht = 0.1"])
def test_other_forms_of_assignment(cell):
    with pytest.raises(ParameterError, match="widht = .* is not a parameter"):
        check({}, [OWN, "# Parameters\n" + cell])


def test_a_name_that_hides_the_history():
    with pytest.raises(ParameterError, match="In = 3 is not a parameter"):
        parameters.check(DEFAULTS | {"In": 3}, **SPECIFICATIONS)


def test_missing():
    with pytest.raises(ParameterError, match="width is missing; it must be a multiple of 8"):
        parameters.check({"rate": 0.1, "effort": "published"}, **SPECIFICATIONS)


def test_every_problem_is_named_on_one_line():
    with pytest.raises(ParameterError) as error:
        check({"width": 1, "rate": 2.0}, [OWN, "# Parameters\nwidht = 2"])
    assert all(text in str(error.value) for text in ("width = 1", "rate = 2.0", "widht = 2"))
    assert "\n" not in str(error.value)


def test_long_values_are_shortened():
    with pytest.raises(ParameterError) as error:
        check({"effort": "x " * 5000}, [OWN, "# Parameters\neffort = " + repr("x " * 5000)])
    assert len(str(error.value)) < 300


def test_a_live_kernel_does_not_misfire():
    """Variables of later cells, cells with magic commands, and an injected cell that was put right."""
    later = ["L = 3\nwidth2 = 5", "%timeit 1", "!ls", "x = width"]
    assert check({"L": 3, "width2": 5, "x": 64}, [OWN, *later]).published
    with pytest.raises(ParameterError):
        check({}, [OWN, "# Parameters\nwidht = 96", *later])
    assert check({"width": 96}, [OWN, "# Parameters\nwidht = 96", "# Parameters\nwidth = 96", *later]).values["width"] == 96
    assert check({}, [OWN, "# Parameters\nwidht = 96", OWN]).published


def test_without_a_kernel_only_values_are_checked():
    assert parameters.check(dict(DEFAULTS), **SPECIFICATIONS).published
