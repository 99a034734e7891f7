import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

def available() -> bool: ...
def filter_weights(size: int, out_size: int, kind: int) -> tuple[Ints, Ints, Ints]: ...
def resample_rows(
    source: Bytes, out: Bytes, starts: Ints, num_groups: Ints, weights: npt.NDArray[np.int16]
) -> None: ...
def resample_columns(
    source: Bytes, out: Bytes, starts: Ints, counts: Ints, weights: Ints
) -> None: ...
