"""`job.loader`: data as a function of the step, so that a redo and a replacement read what was read before.

It imports torch, so it is imported when the first loader is made. It knows nothing of how a step is redone.
"""

from everstep.worker.loader.base import Loader
from everstep.worker.loader.guard import guard_plain_loaders
from everstep.worker.loader.make import LoaderOptions, make_loader
from everstep.worker.loader.private import PrivateLoader

__all__ = ["Loader", "LoaderOptions", "PrivateLoader", "guard_plain_loaders", "make_loader"]
