"""The pictures of one request, from encoded bytes to what the engine takes."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future

from pyvlm import _core
from pyvlm.media.lease import PatchLease
from pyvlm.media.preprocessor import Picture, Preprocessor
from pyvlm.outputs import Timings
from pyvlm.preparation import RequestPlan
from pyvlm.request import Embeddings


class Pictures:
    """Owns the jobs and leases of one request until `close`. Event loop's thread only."""

    def __init__(self, native: _core.Engine, preprocessor: Preprocessor | None, owner: str) -> None:
        """None: the model takes no pictures. `owner`: for the table of leases."""
        self._native = native
        self._preprocessor = preprocessor
        self._owner = owner
        self._jobs: dict[int, Future[PatchLease]] = {}
        # Emptied by `close`, so that no frame of a kept traceback can hold on to a picture.
        self.inputs: list[_core.ImageInput] = []
        self.timings = Timings()

    async def prepare(self, plan: RequestPlan, deadline_s: float | None) -> None:
        """Fills `inputs`, in the order of the request. The first picture that fails ends it."""
        ready = self._ready(plan)
        todo = [
            Picture(image, header, index)
            for index, (image, header) in enumerate(
                zip(plan.request.images, plan.headers, strict=True)
            )
            if header is not None and not isinstance(image, Embeddings) and index not in ready
        ]
        leases = await self._leases(todo, deadline_s)
        self.timings = _timings(leases.values())
        keys = plan.cache_keys
        made = {i: _pixels(lease, keys[i] if keys else b"") for i, lease in leases.items()}
        self.inputs += [(ready | made)[index] for index in range(len(plan.request.images))]

    def abandon(self) -> None:
        """Cancels what is not done; `prepare` is cancelled with it."""
        for job in self._jobs.values():
            job.cancel()

    def close(self) -> None:
        """Cancels what is not done, lets go of what is: the engine keeps what it still reads."""
        for job in self._jobs.values():
            if not job.cancel():
                job.add_done_callback(_release)
        self._jobs.clear()
        self.inputs.clear()

    def _ready(self, plan: RequestPlan) -> dict[int, _core.ImageInput]:
        """Rows that the caller gave, or that the engine has still."""
        found = {}
        for index, image in enumerate(plan.request.images):
            if isinstance(image, Embeddings):
                found[index] = _core.ImageInput.embeddings(image.rows)
            elif plan.cache_keys:
                cached = self._native.cached_image(plan.cache_keys[index])
                if cached is not None:
                    found[index] = cached
        return found

    async def _leases(
        self, todo: Sequence[Picture], deadline_s: float | None
    ) -> Mapping[int, PatchLease]:
        if not todo:
            return {}
        assert self._preprocessor is not None  # the capability implies it
        jobs = self._preprocessor.submit_all(todo, deadline_s=deadline_s, owner=self._owner)
        self._jobs = {picture.index: job for picture, job in zip(todo, jobs, strict=True)}
        leases = await asyncio.gather(*map(asyncio.wrap_future, self._jobs.values()))
        return dict(zip(self._jobs, leases, strict=True))


def _pixels(lease: PatchLease, cache_key: bytes) -> _core.ImageInput:
    patches = lease.patches
    return _core.ImageInput.pixels(patches.patches, patches.valid, cache_key=cache_key)


def _timings(leases: Collection[PatchLease]) -> Timings:
    times = [lease.times for lease in leases]
    return Timings(
        preprocess_wait=max((t.wait_ms for t in times), default=0.0) / 1e3,
        decode_image=sum(t.decode_ms for t in times) / 1e3,
        transform=sum(t.transform_ms for t in times) / 1e3,
    )


def _release(job: Future[PatchLease]) -> None:
    if not job.cancelled() and job.exception() is None:
        job.result().release()
