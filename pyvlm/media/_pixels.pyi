import numpy as np
import numpy.typing as npt

def fill_patches(
    tile: npt.NDArray[np.uint8],
    table: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
    patch_size: int,
) -> None: ...
