"""Numbers of a file that the parser takes as they are: their ranges."""

from ._read import Reader

COEFFICIENTS = ("friction", "spin", "roll")


def restitution_in(reader: Reader) -> list[float]:
    """What a file says in `<numeric name="restitution">`, right or wrong; `[0]` if nothing."""
    m, mujoco = reader.m, reader.mujoco
    index = mujoco.mj_name2id(m, mujoco.mjtObj.mjOBJ_NUMERIC, "restitution")
    if index < 0:
        return [0.0]
    first, count = m.numeric_adr[index], m.numeric_size[index]
    return m.numeric_data[first : first + count].tolist()


def restitution_of(reader: Reader, given: float | None) -> float:
    """The restitution that is given, else that of `<numeric name="restitution">`, else 0.

    **Raises:** `ValueError` if it is not one number in [0, 1].
    """
    where, values = 'custom/numeric "restitution"', restitution_in(reader)
    if given is not None:
        where, values = "restitution", [given]
    if len(values) != 1 or not 0 <= values[0] <= 1:
        raise ValueError(
            f"{where} is {values}, but must be one number in [0, 1]: the ratio of the speeds "
            "after and before an impact."
        )
    return float(values[0])


def check_coefficients(reader: Reader) -> None:
    """Refuses coefficients of friction that are negative.

    **Raises:** `ValueError` with the element.
    """
    for name, value in reader.values.items():
        key = name.rpartition("/")[2]
        if key in COEFFICIENTS and value < 0:
            raise ValueError(
                f"{name} is {float(value):g}; a coefficient of friction is 0, for none, or positive."
            )
