"""Parquet files, as wandb exports a history."""

from scalerl.errors import InputError
from scalerl.forecast.logs.frame import Placed
from scalerl.forecast.logs.readers.budget import MAX_COLUMNS
from scalerl.forecast.logs.readers.objects import metrics_of
from scalerl.forecast.logs.readers.source import Source


def parquet_rows(source: Source) -> Placed:
    """Return the rows of a Parquet file, if pyarrow is installed."""
    try:
        from pyarrow import BufferReader, parquet
    except ModuleNotFoundError:
        raise InputError(f"{source.path} is Parquet, which needs pyarrow: pip install pyarrow, or give CSV.") from None
    file = parquet.ParquetFile(BufferReader(source.data))
    num_columns = len(file.schema_arrow)
    source.budget.limit(num_columns, MAX_COLUMNS, "columns")
    source.budget.spend(file.metadata.num_rows * num_columns)
    return [(f"row {at}", metrics_of(row)) for at, row in enumerate(file.read().to_pylist(), start=1)]
