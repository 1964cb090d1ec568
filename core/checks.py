"""Checks of settings: a value has the kind and the range that its name promises.

Python is lenient where users are not helped by it: True passes for 1, 4.0 for 4, "no" for true.
It knows names, values and limits; it does not know what they set.
"""

from core.errors import ConfigError

__all__ = ["check_number", "check_switch"]


def check_number(name: str, value: object, low: float, high: float) -> None:
    """Refuses what is no number from `low` to `high`; a whole one when both limits are.

    Raises:
        ConfigError: another kind of value (True is no number), out of range, or NaN.
    """
    whole = isinstance(low, int) and isinstance(high, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ConfigError("whole_number" if whole else "number", name=name, value=value)
    if not low <= value <= high:
        raise ConfigError("range", name=name, value=value, low=low, high=high)


def check_switch(name: str, value: object) -> None:
    """Refuses what is neither True nor False.

    Raises:
        ConfigError: another kind of value.
    """
    if not isinstance(value, bool):
        raise ConfigError("switch", name=name, value=value)
