"""Statistics that outliers do not spoil."""

import numpy as np


def median_and_error(values: np.ndarray) -> tuple[float, float]:
    """The median, and its standard error for independent values."""
    middle = float(np.median(values))
    # Of a median, 1.25 times that of a mean; the deviation from the median one, against outliers.
    deviation = 1.4826 * float(np.median(np.abs(values - middle)))
    return middle, 1.2533 * deviation / len(values) ** 0.5
