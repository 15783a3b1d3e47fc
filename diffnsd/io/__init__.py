"""Reading and writing of measured motion and of predictions, with errors that say what to do."""

from .tosses import (
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
