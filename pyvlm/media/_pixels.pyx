# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The last loop over the pixels: look-up of the normalised value and patch order in one pass."""


def fill_patches(
    const unsigned char[:, :, :] tile,
    const float[:, ::1] table,
    float[:, ::1] out,
    int patch_size,
):
    """Writes tile [S, S, 3] to out [P, 3*p*p]: raster patches, (channel, y, x) within one.

    table [3, 256] holds the model's value of every 8-bit level per channel. The GIL is released
    while it runs. Raises ValueError if the shapes do not fit each other.
    """
    cdef Py_ssize_t p = patch_size
    cdef Py_ssize_t side, row, col, channel, y, x
    cdef const unsigned char* source
    cdef Py_ssize_t step = tile.strides[1]
    cdef const float* values
    cdef float* target
    if p < 1 or tile.shape[2] != 3 or tile.shape[0] != tile.shape[1] or tile.shape[0] % p:
        raise ValueError("tile must be [S, S, 3] with S a multiple of the patch size")
    side = tile.shape[0] // p
    if table.shape[0] != 3 or table.shape[1] != 256:
        raise ValueError("table must be [3, 256]")
    if out.shape[0] != side * side or out.shape[1] != 3 * p * p:
        raise ValueError("out must be [P, 3*p*p]")
    with nogil:
        for row in range(side):
            for col in range(side):
                target = &out[row * side + col, 0]
                for channel in range(3):
                    values = &table[channel, 0]
                    for y in range(p):
                        source = &tile[row * p + y, col * p, channel]
                        for x in range(p):
                            target[x] = values[source[x * step]]
                        target += p
