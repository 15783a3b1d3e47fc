"""The tossed cube: measured tosses, the fit of contact parameters to them, and HTML result pages.

Error messages on reading and writing files say what to do. The two pages, a report and a 3D replay,
are one HTML file each and need the extra `viz`: `pip install "diffnsd[viz]"`.
"""

from ..pages import (
    ParameterRow as ParameterRow,
    PoseErrors as PoseErrors,
    RunFigures as RunFigures,
    TossComparison as TossComparison,
    write_replay as write_replay,
    write_report as write_report,
)
from ._data import (
    OutputDirError as OutputDirError,
    PaddedTosses as PaddedTosses,
    Toss as Toss,
    Tosses as Tosses,
    TossFileError as TossFileError,
    check_output_dir as check_output_dir,
    load_tosses as load_tosses,
    save_predictions as save_predictions,
    save_tosses as save_tosses,
)
