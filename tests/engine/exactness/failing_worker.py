"""A vLLM worker that fails on demand, in the ways that real ones do.

Taken by vLLM through its own ``worker_cls`` argument.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.v1.worker.cpu_worker import CPUWorker

TRIGGER = "RAGCACHE_TEST_FAIL"
"""Environment variable: names a file that says what goes wrong from the next step on.

``raise`` and ``sleep`` happen once; ``slow``, ``store`` (documents that are reused anywhere are
gone) and the host tier's failures last until the file is gone, and so does ``poison N``: prompts of
N tokens end the process.
"""


class FailingWorker(CPUWorker):  # type: ignore[misc] # vLLM is untyped here
    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        trigger = Path(os.environ[TRIGGER])
        what = trigger.read_text() if trigger.exists() else ""
        if what in {"raise", "sleep"}:
            trigger.unlink()
        if what == "raise":
            msg = "the device fell off the bus"
            raise RuntimeError(msg)
        if what == "sleep":
            time.sleep(600)
        if what == "slow":
            time.sleep(3)
        if what.startswith("poison"):
            tokens = int(what.split()[1])
            new = args[0].scheduled_new_reqs
            if any(len(request.prompt_token_ids) == tokens for request in new):
                os._exit(1)
        if what.startswith("host"):
            break_host_tier(save="save" in what, load="load" in what)
        if what == "store":
            get_kv_transfer_group()._store._documents.clear()
        return super().execute_model(*args, **kwargs)


def break_host_tier(*, save: bool, load: bool) -> None:
    """Make the memory that the copies go to unwritable, on the host's side or on the model's."""
    copies = get_kv_transfer_group()._copies
    parts = []
    for part in copies._parts:
        on_gpu, on_host = (array.view() for array in part)
        on_host.flags.writeable = not save
        on_gpu.flags.writeable = not load
        parts.append((on_gpu, on_host))
    copies._parts = parts
