"""The tossed cube: measured tosses, the fit of contact parameters to them, and HTML result pages.

Error messages on reading and writing files say what to do. The two pages, a report and a 3D replay,
are one HTML file each and need the extra `viz`: `pip install "diffnsd[viz]"`.
"""

from .._files import OutputDirError as OutputDirError, check_output_dir as check_output_dir
from ..pages import (
    ParameterRow as ParameterRow,
    PoseErrors as PoseErrors,
    RunFigures as RunFigures,
    TossComparison as TossComparison,
    write_replay as write_replay,
    write_report as write_report,
)
from ._data import (
    PaddedTosses as PaddedTosses,
    Toss as Toss,
    Tosses as Tosses,
    TossFileError as TossFileError,
    load_tosses as load_tosses,
    save_predictions as save_predictions,
    save_tosses as save_tosses,
)
