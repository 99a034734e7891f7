# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Resizing of 8-bit RGB pixels in the fixed-point arithmetic of Pillow, by AVX2.

Pillow sums integers, so sums are equal whatever their order, if the weights are. These come from
the same formulas in the same order of double operations.
"""

from libc.math cimport M_PI, ceil, sin
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

import numpy as np

cdef extern from "resample_avx2.h" nogil:
    enum:
        WEIGHT_BITS
        ROWS_AT_ONCE
        READ_BEYOND
    int has_avx2()
    void blend_rows(const uint8_t** rows, uint8_t** out, int width, const int* starts,
                    const int* num_groups, const short* weights, Py_ssize_t weights_step)
    void blend_column(const uint8_t* source, Py_ssize_t stride, int num_taps,
                      const int* weights, uint8_t* out, Py_ssize_t num_bytes)

cdef enum Filter:
    LANCZOS = 1
    BILINEAR = 2
    BICUBIC = 3


def available() -> bool:
    """Whether this processor can run the functions below; they must not be called otherwise."""
    return has_avx2() != 0


cdef inline double _sinc(double x) noexcept nogil:
    if x == 0.0:
        return 1.0
    x = x * M_PI
    return sin(x) / x


cdef inline double _filter(Filter kind, double x) noexcept nogil:
    if kind == LANCZOS:
        return _sinc(x) * _sinc(x / 3) if -3.0 <= x < 3.0 else 0.0
    if x < 0.0:
        x = -x
    if kind == BILINEAR:
        return 1.0 - x if x < 1.0 else 0.0
    if x < 1.0:
        return (1.5 * x - 2.5) * x * x + 1
    if x < 2.0:
        return (((x - 5) * x + 8) * x - 4) * -0.5
    return 0.0


def filter_weights(int size, int out_size, int kind):
    """(starts, counts, weights [out_size, largest count]): the taps of each output pixel.

    Weights are fixed-point numbers of 22 bits. kind is a PIL.Image.Resampling: LANCZOS, BILINEAR
    or BICUBIC.
    """
    cdef double scale = <double>size / out_size
    cdef double filter_scale = scale if scale > 1.0 else 1.0
    cdef double support = (3.0 if kind == LANCZOS else 1.0 if kind == BILINEAR else 2.0)
    cdef double inverse = 1.0 / filter_scale
    cdef double center, total, weight
    cdef int x, tap, first, last
    if size < 1 or out_size < 1 or kind not in (LANCZOS, BILINEAR, BICUBIC):
        raise ValueError("sizes must be positive and the filter one of three")
    support *= filter_scale
    cdef int most = min(<int>ceil(support) * 2 + 1, size)
    starts_array = np.empty(out_size, np.int32)
    counts_array = np.empty(out_size, np.int32)
    weights_array = np.zeros((out_size, most), np.int32)
    cdef int[::1] starts = starts_array
    cdef int[::1] counts = counts_array
    cdef int[:, ::1] weights = weights_array
    cdef double[::1] exact = np.empty(most)
    with nogil:
        for x in range(out_size):
            center = (x + 0.5) * scale
            first = max(0, <int>(center - support + 0.5))
            last = min(size, <int>(center + support + 0.5))
            total = 0.0
            for tap in range(last - first):
                exact[tap] = _filter(<Filter>kind, (tap + first - center + 0.5) * inverse)
                total += exact[tap]
            for tap in range(last - first):
                weight = exact[tap] / total if total != 0.0 else exact[tap]
                weight *= 1 << WEIGHT_BITS
                weights[x, tap] = <int>(weight - 0.5 if weight < 0 else weight + 0.5)
            starts[x] = first
            counts[x] = last - first
    return starts_array, counts_array, weights_array


def resample_rows(
    const unsigned char[:, :, ::1] source,
    unsigned char[:, :, ::1] out,
    const int[::1] starts,
    const int[::1] num_groups,
    const short[:, :, ::1] weights,
):
    """source [H, W, 3] to out [H, width, 3]. weights [width, groups of 4 taps, 32], as the header
    says. Releases the GIL."""
    cdef Py_ssize_t height = source.shape[0], row_bytes = 3 * source.shape[1]
    cdef Py_ssize_t step = row_bytes + READ_BEYOND
    cdef int width = <int>out.shape[1]
    cdef Py_ssize_t top, row, x
    cdef const uint8_t* rows[ROWS_AT_ONCE]
    cdef uint8_t* targets[ROWS_AT_ONCE]
    if source.shape[2] != 3 or out.shape[2] != 3 or out.shape[0] != height or width < 1:
        raise ValueError("source must be [H, W, 3] and out [H, width, 3]")
    if starts.shape[0] != width or num_groups.shape[0] != width or weights.shape[0] != width:
        raise ValueError("starts, groups and weights must be given for each column of out")
    for x in range(width):
        if (starts[x] < 0 or num_groups[x] < 0 or num_groups[x] > weights.shape[1]
                or starts[x] + 4 * num_groups[x] > source.shape[1] + 3):
            raise ValueError("taps must lie within the source")
    if weights.shape[2] != 32:
        raise ValueError("weights must come in groups of 32")
    cdef uint8_t* padded = <uint8_t*>malloc(ROWS_AT_ONCE * step)
    if padded == NULL:
        raise MemoryError
    with nogil:
        memset(padded, 0, ROWS_AT_ONCE * step)
        for row in range(ROWS_AT_ONCE):
            rows[row] = padded + row * step
        top = 0
        while top < height:
            for row in range(ROWS_AT_ONCE):
                # Where fewer rows are left, the last one is made again.
                x = min(top + row, height - 1)
                memcpy(padded + row * step, &source[x, 0, 0], row_bytes)
                targets[row] = &out[x, 0, 0]
            blend_rows(rows, targets, width, &starts[0], &num_groups[0], &weights[0, 0, 0],
                       weights.shape[1] * 32)
            top += ROWS_AT_ONCE
    free(padded)


def resample_columns(
    const unsigned char[:, ::1] source,
    unsigned char[:, ::1] out,
    const int[::1] starts,
    const int[::1] counts,
    const int[:, :, ::1] weights,
):
    """source [H, bytes] to out [height, bytes], at least 16 bytes. weights [height, pairs of taps,
    2], as the header says. Releases the GIL."""
    cdef Py_ssize_t height = out.shape[0], num_bytes = out.shape[1], y
    if num_bytes < 16 or source.shape[1] != num_bytes:
        raise ValueError("source and out must have rows of the same length, at least 16 bytes")
    if starts.shape[0] != height or counts.shape[0] != height or weights.shape[0] != height:
        raise ValueError("starts, counts and weights must be given for each row of out")
    for y in range(height):
        if (starts[y] < 0 or counts[y] < 1 or counts[y] > 2 * weights.shape[1]
                or starts[y] + counts[y] > source.shape[0]):
            raise ValueError("taps must lie within the source")
    if weights.shape[2] != 2:
        raise ValueError("weights must come in two halves")
    with nogil:
        for y in range(height):
            blend_column(&source[starts[y], 0], num_bytes, counts[y], &weights[y, 0, 0],
                         &out[y, 0], num_bytes)
