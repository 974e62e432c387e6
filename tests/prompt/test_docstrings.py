"""Descriptions of parameters in docstrings: the model reads them with the parameters."""

from __future__ import annotations

from typing import Annotated, assert_type

from weakincentives.prompt import tool


@tool
def google(city: str, days: int = 1, *, unit: Annotated[str, "C or F"] = "C") -> str:
    """Forecast the weather.

    Uses the nearest station.

    Args:
        city: The city, in English:
            not its district.
        days (int, optional): How many days.
        unit: Not read, since the annotation says it.

    Returns:
        One line a day.
    """
    return f"{city} {days} {unit}"


@tool
def numpy(city: str, days: int = 1, unit: str = "C", lang: str = "en") -> str:
    """Forecast the weather.

    Parameters
    ----------
    city : str
        The city, in English:
        not its district.

    days : int, default 1
        How many days.
    unit, lang
        How to write it.

    Returns
    -------
    str
        One line a day.
    """
    return f"{city} {days} {unit} {lang}"


@tool
def sphinx(city: str, days: int = 1) -> str:
    """Forecast the weather.

    :param city: The city, in English:
        not its district.
    :type city: str
    :param int days: How many days.
    :return: One line a day.
    """
    return f"{city} {days}"


@tool
def plain(city: str) -> str:
    """Forecast the weather.

    Args: see the handbook.

    Example:
        city: Oslo
    """
    return city


CITY = "The city, in English: not its district."


def test_google_style() -> None:
    assert google.description == ("Forecast the weather.\n\nUses the nearest station.\n\nReturns:\n    One line a day.")
    assert google.param_descriptions == {"city": CITY, "days": "How many days.", "unit": "C or F"}


def test_numpy_style() -> None:
    assert numpy.description == "Forecast the weather.\n\nReturns\n-------\nstr\n    One line a day."
    assert numpy.param_descriptions == {
        "city": CITY,
        "days": "How many days.",
        "unit": "How to write it.",
        "lang": "How to write it.",
    }


def test_sphinx_style() -> None:
    assert sphinx.description == "Forecast the weather.\n\n:return: One line a day."
    assert sphinx.param_descriptions == {"city": CITY, "days": "How many days."}


def test_what_describes_no_parameter_stays_in_the_description() -> None:
    assert plain.description == "Forecast the weather.\n\nArgs: see the handbook.\n\nExample:\n    city: Oslo"
    assert plain.param_descriptions == {}


def test_a_tool_keeps_the_types_of_its_function() -> None:
    assert_type(google("Oslo", 2, unit="F"), str)
    assert google("Oslo", 2, unit="F") == "Oslo 2 F"
