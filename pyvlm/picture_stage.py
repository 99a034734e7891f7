"""The preprocessing stage of an engine: its bounds, from those of the engine and the policy."""

from __future__ import annotations

import mmap

from pyvlm.bundle import Bundle
from pyvlm.engine_options import MIB, EngineOptions
from pyvlm.media.policy import MediaPolicy
from pyvlm.media.pool import make_preprocessor
from pyvlm.media.preprocessor import PoolOptions, Preprocessor

_SLAB_BYTES = 256 * MIB


def preprocessor_of(
    bundle: Bundle, options: EngineOptions, policy: MediaPolicy
) -> Preprocessor | None:
    """Not started. None: the model takes no pictures."""
    vision = bundle.model.vision
    if vision is None:
        return None
    stage = pool_options(bundle, options, policy)
    return make_preprocessor(bundle.checkpoint_path, vision, stage)


def pool_options(bundle: Bundle, options: EngineOptions, policy: MediaPolicy) -> PoolOptions:
    """Requests are bounded where they enter, so the stage itself takes whatever has entered."""
    max_open = bundle.manifest.kv.num_slots + options.max_queued
    return PoolOptions(
        num_workers=options.num_preprocess_workers,
        slab_bytes=stage_bytes(bundle, options, policy),
        max_jobs=max_open * policy.max_images,
        max_queued_bytes=options.max_queued_bytes,
        job_timeout_s=options.preprocess_timeout_s,
        worker_memory_bytes=options.preprocess_worker_bytes,
    )


def slab_bytes(bundle: Bundle, options: EngineOptions, policy: MediaPolicy) -> int:
    """What the workers' shared memory takes from the start; 0 without workers."""
    if options.num_preprocess_workers == 0 or bundle.model.vision is None:
        return 0
    return stage_bytes(bundle, options, policy)


def row_cache_bytes(bundle: Bundle, options: EngineOptions) -> int:
    """Rows of encoded pictures that the engine keeps. Without an image cache only those that the
    choices of one request share: as many as a request can have."""
    if options.image_cache_bytes or bundle.model.vision is None:
        return options.image_cache_bytes
    return bundle.manifest.kv.capacity * bundle.model.decoder.hidden_size * 4


def stage_bytes(bundle: Bundle, options: EngineOptions, policy: MediaPolicy) -> int:
    """Bound of all patches between preprocessing and encoding. By default room for the largest
    request that policy and capacity admit, and for a second one if 256 MiB allow."""
    if options.slab_bytes is not None:
        return options.slab_bytes
    largest = _largest_request(bundle, policy)
    return max(largest, min(2 * largest, _SLAB_BYTES))


def _largest_request(bundle: Bundle, policy: MediaPolicy) -> int:
    """A cell holds first a picture's file, then its patches: the larger of both, in pages."""
    vision = bundle.model.vision
    assert vision is not None
    tiles = max(1, bundle.manifest.kv.capacity // vision.rows_per_tile)
    patches = tiles * vision.num_patches * vision.patch_dim * 4
    return patches + policy.max_request_image_bytes + policy.max_images * mmap.PAGESIZE
