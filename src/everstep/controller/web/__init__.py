"""The live page of a job, its JSON and its metrics, served read-only in the controller's own loop.

It reads the `Outlook` and changes nothing. Whatever goes wrong in here, the job goes on. Only `live` is imported by
the controller; the modules that need the extra `web` (starlette, uvicorn) are loaded by it when the job has begun.
"""
