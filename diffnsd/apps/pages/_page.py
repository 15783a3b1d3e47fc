"""Number formatting and colours, shared by the pages in this folder."""

import math

# Colours with enough contrast on light and on dark backgrounds.
MEASURED: tuple[int, int, int] = (235, 137, 20)
SIMULATED: tuple[int, int, int] = (48, 108, 230)


def number(value: float, digits: int = 4) -> str:
    """A number with `digits` significant digits, without trailing zeros."""
    if not math.isfinite(value):
        return "not finite" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    return f"{value:.{digits}g}".replace("-", "−")


def with_error(value: float, error: float | None) -> tuple[str, str]:
    """A value and its standard error as text, both to two significant digits of the error."""
    if error is None or not (math.isfinite(error) and error > 0 and math.isfinite(value)):
        return number(value), "—" if error is None else number(error, 2)
    places = 1 - math.floor(math.log10(error))
    # Outside this range a plain decimal number is hard to read.
    if not 0 <= places <= 6 or abs(value) >= 1e6:
        return number(value, 6), number(error, 2)
    return f"{value:.{places}f}".replace("-", "−"), f"{error:.{places}f}"
