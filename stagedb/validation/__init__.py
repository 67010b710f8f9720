"""stagedb compared with real frameworks and with published numbers.

`read_models` reads a file of recorded models, and `check_models` compares the graphs of their configs with them.
`check_published` recomputes the numbers that the project ships (`published.yaml`, the parameter counts of its model
cards). `read_records` reads a file of recorded steps of a rank. `check_records` runs each configuration through build,
instantiate and export, and compares the counts; `check_record` does so without a store. `check_steps` predicts
published times of training steps (`step_times.yaml`). `predict` predicts those of a file (`read_steps`), and
`predict_served` the times a token of engines (`read_served`). This package uses the API.
"""

from stagedb.validation.model_check import (
    CheckedModel,
    ModelDifference,
    RecordedModel,
    check_model,
    check_models,
    read_models,
)
from stagedb.validation.op_order import CountDifference, CountedMessage, Counts, compare
from stagedb.validation.published_counts import Published, check_published
from stagedb.validation.record_check import Checked, check_record, check_records, select
from stagedb.validation.records import Record, RecordedMemory, read_records
from stagedb.validation.served_times import (
    ServedRow,
    ServedTime,
    kinds_served,
    known_served,
    predict_served,
    read_served,
    served_errors,
)
from stagedb.validation.step_rows import CALIBRATED, HELD_OUT, NOT_READ, StepRow, job_of, parts, read_steps
from stagedb.validation.step_times import (
    Errors,
    ErrorsOf,
    Prediction,
    PublishedStep,
    StepTime,
    check_steps,
    errors,
    errors_of,
    predict,
    published_steps,
)

__all__ = [
    "CALIBRATED",
    "HELD_OUT",
    "NOT_READ",
    "Checked",
    "CheckedModel",
    "CountDifference",
    "CountedMessage",
    "Counts",
    "Errors",
    "ErrorsOf",
    "ModelDifference",
    "Prediction",
    "Published",
    "PublishedStep",
    "Record",
    "RecordedMemory",
    "RecordedModel",
    "ServedRow",
    "ServedTime",
    "StepRow",
    "StepTime",
    "check_model",
    "check_models",
    "check_published",
    "check_record",
    "check_records",
    "check_steps",
    "compare",
    "errors",
    "errors_of",
    "job_of",
    "kinds_served",
    "known_served",
    "parts",
    "predict",
    "predict_served",
    "published_steps",
    "read_models",
    "read_records",
    "read_served",
    "read_steps",
    "select",
    "served_errors",
]
